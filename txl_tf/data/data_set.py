"""The interface of a data set, in whatever format its files are."""

from collections.abc import Mapping
from typing import Any, Protocol

from txl_tf.data.lanes import Tokens
from txl_tf.data.vocabulary import Vocabulary


class DataSet(Protocol):
    """Splits of token ids: `Records`, or the records of the 2019 release."""

    @property
    def data_dir(self) -> str:
        """The folder of the data set."""

    @property
    def dataset(self) -> str:
        """The name of the data set."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary; `None` if only the number of symbols is known."""

    @property
    def n_token(self) -> int:
        """The number of symbols; ids are below it."""

    @property
    def cutoffs(self) -> tuple[int, ...]:
        """The first ids of the second and later bins of the adaptive softmax."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""

    @property
    def made_from(self) -> Mapping[str, Any]:
        """The files and the arguments that the data set was made from."""

    def split(self, name: str) -> Tokens:
        """Returns the tokens of a split.

        Raises:
            RecordError: If there is no such split.
        """

    def n_tokens(self, split: str) -> int:
        """Returns the number of tokens of a split."""

    def n_documents(self, split: str) -> int:
        """Returns the number of documents of a split; 0 if their boundaries are not known."""


def get_level(data: DataSet) -> str | None:
    """Returns the level of a data set's vocabulary; `None` if there is no vocabulary."""
    return data.vocabulary.level if data.vocabulary else None
