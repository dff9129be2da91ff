import numpy as np
import pytest

from benchmarks.peers.protocol import Shape, Work, parse_peers
from benchmarks.works import draw_ids, make_config, take_preset
from txl_tf import presets

WORDS = Shape(1, 8, 2, 8, 5, 5, 2, 23, (5, 11))


def test_the_speeds_of_others_are_found_by_the_work():
    text = (
        "some remark: median 3\n"
        f"2019 train:{WORDS.spec}: median 2,012.5, best 2,193.6 tokens/s\n"
        f"hub train:{WORDS.spec}: median 500 tokens/s, not compiled\n"
        "2019 eval:6,256,8,1024,64,640,4,27: median 7.0 tokens/s, compiled\n"
    )
    assert parse_peers(text) == {
        "train:1,8,2,8,5,5,2,23:5,11/1": {"2019": 2012.5, "hub, not compiled": 500.0},
        "eval:6,256,8,1024,64,640,4,27": {"2019, compiled": 7.0},
    }


@pytest.mark.parametrize("shape", [WORDS._replace(div_val=4), WORDS._replace(cutoffs=())])
def test_a_work_is_read_from_its_text(shape):
    work = Work("eval", shape)
    assert Work.parse(work.spec) == work


@pytest.mark.parametrize("spec", ["read:1,8,2,8,5,5,2,23", "eval:1,8", "eval", "eval:a,b:1/2"])
def test_a_text_that_is_no_work_is_refused(spec):
    with pytest.raises(ValueError, match=r".*"):
        Work.parse(spec)


def test_a_line_without_a_speed_is_not_read():
    assert parse_peers("2019 train:1,8,2,8,5,5,2,23: no counterpart") == {}


def test_the_shape_of_a_preset_has_its_parameters():
    expected = presets.model("enwik8_base")
    found = make_config(take_preset("enwik8_base"), dropout=0.1)
    assert found.n_layer == expected.n_layer
    assert found.d_head == expected.d_head


def test_ids_follow_the_law():
    counts = np.bincount(draw_ids(7, "zipf", 10_000), minlength=7)
    assert counts[0] / counts[3] == pytest.approx(4, rel=0.2)
