"""A preset: the settings of a model, of its training and of its evaluation."""

import dataclasses

from txl_tf.config import EvalConfig, ModelConfig, TrainConfig


@dataclasses.dataclass(frozen=True)
class Preset:
    """Settings under a name, and the published result of the model that was trained with them."""

    model: ModelConfig
    training: TrainConfig
    evaluation: EvalConfig
    published: str = ""
    published_valid: str = ""

    def find_published(self, split: str) -> tuple[str, str]:
        """Returns the published result to compare a split with, and the split that it is of.

        Only the validation split has a result of its own, and not in every preset; the result on
        the test split serves for all others.
        """
        if split == "valid" and self.published_valid:
            return self.published_valid, "valid"
        return self.published, "test"
