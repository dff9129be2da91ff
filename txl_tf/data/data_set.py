"""What training and evaluation ask of a data set, in whatever form it lies on disk."""

from collections.abc import Mapping
from typing import Any, Protocol

from txl_tf.data.lanes import Tokens
from txl_tf.data.vocabulary import Vocabulary


class DataSet(Protocol):
    """Splits of token ids: `Records`, or the records of the 2019 release."""

    @property
    def data_dir(self) -> str:
        """The folder of the data set."""
        ...

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        ...

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The symbols of the data set; `None` if only their number is known."""
        ...

    @property
    def n_token(self) -> int:
        """The number of symbols: ids are below it."""
        ...

    @property
    def cutoffs(self) -> tuple[int, ...]:
        """The ids at which the adaptive softmax starts a new bin."""
        ...

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        ...

    @property
    def made_from(self) -> Mapping[str, Any]:
        """What the data set was made from, and how."""
        ...

    def split(self, name: str) -> Tokens:
        """Returns a split, to read from.

        Raises:
            RecordError: If there is no such split.
        """
        ...

    def n_tokens(self, split: str) -> int:
        """Returns the number of tokens of a split."""
        ...

    def n_documents(self, split: str) -> int:
        """Returns the number of documents of a split; 0 if its boundaries are not known."""
        ...


def get_level(data: DataSet) -> str | None:
    """Returns the level of a data set's vocabulary; `None` if it has none."""
    return data.vocabulary.level if data.vocabulary else None
