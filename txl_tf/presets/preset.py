"""A preset: the settings of a model, its training and its evaluation."""

import dataclasses

from txl_tf.config import EvalConfig, ModelConfig, TrainConfig


@dataclasses.dataclass(frozen=True)
class Preset:
    """Named settings, and the published result of a model that was trained with them."""

    model: ModelConfig
    training: TrainConfig
    evaluation: EvalConfig
    published: str = ""
    published_valid: str = ""

    def find_published(self, split: str) -> tuple[str, str]:
        """Returns the published result to compare a split with, and the split it was measured on.

        Some presets have a result for the validation split. All other splits are compared with the
        result on the test split.
        """
        if split == "valid" and self.published_valid:
            return self.published_valid, "valid"
        return self.published, "test"
