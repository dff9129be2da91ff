"""What a `CausalLM` and its data do not take is refused in one line that names the way."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_causal_lm import BATCH, CONFIG, IDS, LENGTH, SPAN, make_lm, make_segments
from small_commands import write_words

from txl_tf import CausalLM, Segments, TransformerXL
from txl_tf.data import open_records
from txl_tf.errors import UserError
from txl_tf.models.quantization import quantize

LANE = r"row b of a batch must continue where row b of the batch before ended \(a lane\)"


class Partial(keras.utils.PyDataset):
    """Two batches, of which the last one has fewer rows."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        ids = np.zeros(((BATCH, 2)[index], LENGTH), "int32")
        return ids, ids


@pytest.fixture(scope="module")
def lm():
    return make_lm()


@pytest.mark.parametrize("way", ["fit", "evaluate", "predict"])
def test_batches_of_another_size_are_refused(lm, way):
    dataset = make_segments().to_dataset()
    unknown = dataset.unbatch().batch(BATCH)
    for data, found in (
        (make_segments(batch=4), "4 rows"),
        (dataset.unbatch().batch(5, drop_remainder=True), "5 rows"),
        (unknown, r"not fixed.*\.batch\(6, drop_remainder=True\)"),
        (Partial(), "2 rows"),
    ):
        with pytest.raises(UserError, match=rf"must have 6 rows. Received: .*{found}.*{LANE}"):
            getattr(lm, way)(data)


def test_validation_data_are_checked_before_the_first_step(lm):
    before = int(lm.n_read)
    with pytest.raises(UserError, match=r"must have 6 rows. Received: 4 rows"):
        lm.fit(make_segments(), validation_data=make_segments(batch=4))
    ids = np.zeros((4, LENGTH), "int32")
    with pytest.raises(UserError, match=r"must have 6 rows. Received: 4 rows"):
        lm.fit(make_segments(), validation_data=(ids, ids))
    assert int(lm.n_read) == before


@pytest.mark.parametrize("way", ["fit", "evaluate", "predict"])
def test_ids_that_the_model_does_not_have_are_refused(lm, way, tmp_path):
    ids = np.where(np.arange(len(IDS)) == 99, 23, IDS)
    write_words(tmp_path, n_token=25, train=len(IDS))
    array = np.full((BATCH, LENGTH), 23, "int32")
    for data, bound in (
        (make_segments(ids), 24),
        (make_segments(open_records(tmp_path).split("train")), 25),
        (array, 24),
        ({"ids": array, "document_starts": np.zeros(array.shape, bool)}, 24),
    ):
        with pytest.raises(UserError, match=rf"`n_token` of at least {bound}. .*n_token=23"):
            getattr(lm, way)(data)
    with pytest.raises(UserError, match=r"`n_token` of at least 24"):
        lm.fit(make_segments(), validation_data=make_segments(ids))


@pytest.mark.parametrize("way", ["fit", "evaluate"])
@pytest.mark.parametrize(
    ("an_id", "a_target", "message"),
    [
        pytest.param(0, 23, r"`n_token` of at least 24\. .*n_token=23", id="large target"),
        pytest.param(-1, 0, r"must not be negative; .* Received: -1", id="negative id"),
        pytest.param(0, -100, r"must not be negative; .* Received: -100", id="negative target"),
    ],
)
def test_arrays_of_what_the_model_does_not_have_are_refused(lm, way, an_id, a_target, message):
    ids, targets = (np.full((BATCH, LENGTH), value) for value in (an_id, a_target))
    with pytest.raises(UserError, match=message):
        getattr(lm, way)(ids, targets)
    with pytest.raises(UserError, match=message):
        lm.fit(make_segments(), validation_data=(ids, targets))


def test_targets_and_weights_of_another_shape_are_refused(lm):
    ids = np.zeros((BATCH, LENGTH), "int32")
    with pytest.raises(UserError, match=rf"`targets` must be \(6, 5\). Received: \(5, 6\); {LANE}"):
        lm.train_on_batch(ids, ids.T)
    with pytest.raises(UserError, match=r"`sample weights` must be \(6, 5\). Received: \(6,\)"):
        lm.train_on_batch(ids, ids, sample_weight=np.ones(BATCH))


def test_batches_of_unknown_length_are_refused(lm):
    spec = tf.TensorSpec((BATCH, None), tf.int32)
    dataset = tf.data.Dataset.from_generator(lambda: [], output_signature=(spec, spec))
    with pytest.raises(UserError, match=rf"`ids` must be \(6, T\). Received: \(6, None\); {LANE}"):
        lm.fit(dataset)


def test_a_last_batch_that_is_not_whole_is_refused(lm):
    ids = np.zeros((2 * BATCH + 1, LENGTH), "int32")
    with pytest.raises(UserError, match=r"must have 6 rows. Received: 1 rows"):
        lm.fit(ids, ids)
    with pytest.raises(UserError, match=r"must have 6 rows\. Received: 4 rows"):
        lm.fit(ids[:-1], ids[:-1], batch_size=4)


@pytest.mark.parametrize("argument", [{"shuffle": True}, {"validation_split": 0.1}])
def test_shuffled_data_are_refused(lm, argument):
    with pytest.raises(UserError, match=rf"neither `shuffle` nor `validation_split`: {LANE}"):
        lm.fit(make_segments(), **argument)


def test_rows_of_a_call_are_those_of_the_model(lm):
    with pytest.raises(UserError, match=rf"`ids` must be \(6, T\). Received: \(2, 5\); {LANE}"):
        lm.call(np.zeros((2, LENGTH), "int32"))


@pytest.mark.parametrize(
    "argument", [{"loss": "mse"}, {"metrics": ["accuracy"]}, {"weighted_metrics": ["accuracy"]}]
)
def test_other_losses_and_metrics_are_refused(argument):
    with pytest.raises(UserError, match="takes neither a loss nor metrics: the model has its own"):
        CausalLM(CONFIG, batch_size=BATCH, span=SPAN).compile("adam", **argument)


@pytest.mark.parametrize(
    ("names", "way"),
    [
        (("fit", "evaluate", "predict", "train_on_batch"), r"txl_tf\.CausalLM\(model"),
        (("export", "quantize"), r"txl_tf\.load\(RUN\)\.export"),
    ],
)
def test_the_step_names_what_has_the_loops_of_keras(names, way):
    model = TransformerXL(CONFIG)
    for name in names:
        with pytest.raises(UserError, match=way):
            getattr(model, name)("int8")


@pytest.mark.parametrize("argument", [{"seed": 1}, {"remat": True}, {"dtype": "float32"}])
def test_settings_of_a_model_that_is_there_are_refused(argument):
    with pytest.raises(UserError, match="`seed`, `remat` and `dtype` must be set in the Transf"):
        CausalLM(TransformerXL(CONFIG), batch_size=BATCH, **argument)


@pytest.mark.parametrize("name", ["export", "quantize"])
def test_methods_of_runs_are_refused_with_the_way_to_a_run(lm, name):
    with pytest.raises(UserError, match=rf"lm\.to_run\(RUN\); txl_tf\.load\(RUN\)\.{name}"):
        getattr(lm, name)("int8")


def test_sizes_and_documents_are_checked():
    with pytest.raises(UserError, match=r"`batch_size` must be an integer >= 1. Received: batch"):
        CausalLM(CONFIG, batch_size=0)
    with pytest.raises(UserError, match=r"`eval_batch_size` must be an integer >= 1. Received: e"):
        CausalLM(CONFIG, batch_size=BATCH, eval_batch_size=0)
    with pytest.raises(UserError, match=r"`batch_size` must be an integer >= 1. Received: batch"):
        Segments(IDS, batch_size="6", tgt_len=2)
    with pytest.raises(UserError, match="`document_starts` needs a split of records with docum"):
        Segments(IDS, batch_size=1, tgt_len=2, document_starts=True)


@pytest.mark.parametrize(
    "tokens", [np.zeros((2, 3), int), np.zeros(5), "text", [-1, 1], [2**33, 1]]
)
def test_only_ids_are_cut_into_segments(tokens):
    with pytest.raises(UserError, match="`tokens` must be a split of records, or ids"):
        Segments(tokens, batch_size=1, tgt_len=2)


def test_no_segment_stands_behind_the_last_one():
    segments = make_segments(IDS[:20])
    with pytest.raises(IndexError, match="batch 1 of 1"):
        segments[len(segments)]


def test_the_program_of_keras_may_not_shuffle_by_itself():
    """Keras shuffles a `PyDataset` unless it is told not to."""

    class Noting(Segments):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    read = []
    data = Noting(IDS, batch_size=BATCH, tgt_len=LENGTH)
    make_lm().fit(data, epochs=1, verbose=0)
    assert read[-len(data) :] == list(range(len(data)))
    assert isinstance(data, keras.utils.PyDataset)


def test_targets_that_are_no_integers_or_missing_are_refused(lm):
    ids = np.zeros((BATCH, LENGTH), "int32")
    with pytest.raises(UserError, match=r"`targets` must be integers. Received: dtype="):
        lm.train_on_batch(ids, ids + 0.5)
    with pytest.raises(UserError, match="targets must be given"):
        lm.fit(ids)
    with pytest.raises(UserError, match="`n_token` of at least 24"):
        lm.fit(ids, tf.constant(ids + 23))


def test_a_quantized_model_is_not_trained():
    model = quantize(TransformerXL(CONFIG), "int8")
    with pytest.raises(UserError, match="a quantized model cannot be trained"):
        CausalLM(model, batch_size=BATCH)
