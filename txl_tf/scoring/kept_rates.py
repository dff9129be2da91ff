"""The rates of dynamic evaluation that a search has found for a run."""

import os
from typing import Any, NamedTuple

from txl_tf.config import EvalConfig
from txl_tf.config.base import list_differences
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data.files import check_writable, exists, make_folder, read_json, write_json
from txl_tf.errors import UserError, explain_errors

DYNAMIC_NAME = "dynamic"  # the folder in a run for what dynamic evaluation keeps
_TUNED_NAME = "tuned.json"


class Tuned(NamedTuple):
    """What a search has found.

    Args:
        dynamic: The settings with the lowest loss.
        evaluation: The config of the evaluations; `None` if it is not known.
    """

    dynamic: DynamicConfig
    evaluation: EvalConfig | None

    def describe_differences(self, dynamic: DynamicConfig, evaluation: EvalConfig) -> str | None:
        """Returns a line on the differences between an evaluation and those of the search.

        Args:
            dynamic: The settings of the evaluation.
            evaluation: Its lanes, segment and span.

        Returns:
            The line; `None` if nothing differs, or the rates are not those that were found.
        """
        rates = [(c.rule, c.learning_rate, c.decay) for c in (dynamic, self.dynamic)]
        if rates[0] != rates[1] or self.evaluation is None:
            return None
        found = list_differences(self.evaluation.to_json(), evaluation.to_json())
        if not found:
            return None
        return f"--tune found these rates for another evaluation: {', '.join(found)}"


def check_tuned_place(run: str) -> None:
    """Checks that `write_tuned` can write into a run.

    Raises:
        UserError: If it cannot.
    """
    with explain_errors("--tune cannot keep what it finds", UserError):
        check_writable(os.path.join(run, DYNAMIC_NAME))


def write_tuned(run: str, dynamic: DynamicConfig, evaluation: EvalConfig, **facts: Any) -> None:
    """Writes the settings that a search has found into a run.

    Args:
        run: The run folder.
        dynamic: The settings.
        evaluation: The config of the evaluations.
        **facts: What else is worth knowing, for readers.

    Raises:
        UserError: If they cannot be written.
    """
    make_folder(os.path.join(run, DYNAMIC_NAME))
    content = {"dynamic": dynamic.to_json(), "evaluation": evaluation.to_json(), **facts}
    write_json(_name_tuned(run), content)


def read_tuned(run: str) -> Tuned | None:
    """Returns what a search has found for a run; `None` if there was none.

    Raises:
        UserError: If the file is damaged.
    """
    path = _name_tuned(run)
    if not exists(path):
        return None
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"`{path}` must hold an object. Received: {content!r}")
    dynamic: Any = content.get("dynamic")
    evaluation: Any = content.get("evaluation")
    return Tuned(
        DynamicConfig.from_json(dynamic),
        None if evaluation is None else EvalConfig.from_json(evaluation),
    )


def _name_tuned(run: str) -> str:
    return os.path.join(run, DYNAMIC_NAME, _TUNED_NAME)
