from benchmarks.works import Shape, format_times, read_peers

WORDS = Shape(1, 8, 2, 8, 5, 5, 2, 23, (5, 11))


def test_the_speeds_of_others_are_found_by_the_work(tmp_path):
    path = tmp_path / "peers.txt"
    path.write_text(
        "some remark: median 3\n"
        f"2019 train:{WORDS.spec}: median 2,012.5, best 2,193.6 tokens/s\n"
        f"hub train:{WORDS.spec}: median 500, best 501 tokens/s\n"
        "2019 eval:6,256,8,1024,64,640,4,27: median 7.0, best 8 tokens/s\n"
    )
    assert read_peers(str(path)) == {
        "train:1,8,2,8,5,5,2,23:5,11/1": {"2019": 2012.5, "hub": 500.0},
        "eval:6,256,8,1024,64,640,4,27": {"2019": 7.0},
    }
    assert read_peers(None) == {}
    assert format_times(4025.0, {"2019": 2012.5, "hub": 500.0}) == "2.00 x 2019, 8.05 x hub"
