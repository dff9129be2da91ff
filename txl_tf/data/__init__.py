"""Token ids: the vocabulary, the records that store ids, and the lanes in which they are read."""

from txl_tf.data.lanes.evaluation_lanes import EvaluationLanes, Segment
from txl_tf.data.lanes.training_lanes import TrainingLanes
from txl_tf.data.records.format import RecordError
from txl_tf.data.records.reading import Records, Split, open_records, read_ids, verify_records
from txl_tf.data.records.writing import write_records
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.data.text.wikitext import detokenize_wikitext, tokenize_wikitext

__all__ = [
    "EvaluationLanes",
    "RecordError",
    "Records",
    "Segment",
    "Split",
    "TrainingLanes",
    "Vocabulary",
    "detokenize_wikitext",
    "open_records",
    "read_ids",
    "tokenize_wikitext",
    "verify_records",
    "write_records",
]
