"""Token ids: the vocabulary, the records that store them and the lanes in which they are read."""

from txl_tf.data.evaluation_lanes import EvaluationLanes, Segment
from txl_tf.data.lanes import TrainingLanes
from txl_tf.data.reading import Records, Split, open_records, read_ids, verify_records
from txl_tf.data.records import RecordError
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.data.wikitext import detokenize_wikitext, tokenize_wikitext
from txl_tf.data.writing import write_records

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
