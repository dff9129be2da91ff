"""Dynamic evaluation with what is kept in a run."""

import sys
import warnings

from txl_tf.config import EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data.records.reading import Records
from txl_tf.errors import UserError
from txl_tf.model import SegmentModel
from txl_tf.runs.array_store import find_folder
from txl_tf.scoring.adapting_model import check_temperature
from txl_tf.scoring.dynamic_evaluator import DynamicEvaluator
from txl_tf.scoring.evaluator import Evaluator
from txl_tf.scoring.gradient_statistics import GradientStatistics, find_statistics
from txl_tf.scoring.kept_rates import DYNAMIC_NAME, read_tuned
from txl_tf.scoring.progress import Bar


def choose_dynamic(
    dynamic: DynamicConfig | bool, evaluation: EvalConfig, run: str | None
) -> DynamicConfig | None:
    """Returns the settings of dynamic evaluation; `None` for a static one.

    Args:
        dynamic: The settings; true for those that were found for the run, or else the defaults.
        evaluation: Lanes, segment and span.
        run: The run folder; `None` if there is none.

    >>> choose_dynamic(False, EvalConfig(), None) is None
    True
    >>> choose_dynamic(True, EvalConfig(), None) == DynamicConfig()
    True
    >>> choose_dynamic(DynamicConfig(learning_rate=0), EvalConfig(), None) is None
    True
    """
    if dynamic is not True:
        return dynamic if dynamic and dynamic.learning_rate else None
    tuned = read_tuned(run) if run else None
    if tuned is None:
        return DynamicConfig()
    if line := tuned.describe_differences(tuned.dynamic, evaluation):
        warnings.warn(line, stacklevel=4)  # at the call of a method of a language model
    return tuned.dynamic


def make_evaluator(
    model: SegmentModel,
    config: EvalConfig,
    dynamic: DynamicConfig,
    records: Records,
    *,
    run: str | None,
    jit: str = "auto",
) -> Evaluator:
    """Returns the evaluator of a run's model, dynamic unless the learning rate is 0.

    Args:
        model: The model, with its weights.
        config: Lanes, segment and span.
        dynamic: The rule of the steps.
        records: The data set, with a training split if the rule needs its gradients.
        run: The run folder, in which these and the progress are kept; `None` to keep nothing.
        jit: How much of the model XLA compiles; one of `JIT_MODES`.

    Raises:
        UserError: If the config has a temperature, or the rule needs a training split and there
            is none, or it is too short.
    """
    if not dynamic.learning_rate:
        print("With a learning rate of 0 the evaluation is static.", file=sys.stderr)
        return Evaluator(model, config, vocabulary=records.vocabulary, jit=jit)
    check_temperature(config)  # before the gradients are gathered, which takes a while
    return DynamicEvaluator(
        model,
        config,
        dynamic,
        find_run_statistics(model, config, dynamic, records, run=run, jit=jit),
        folder=_find_folder(run),
        vocabulary=records.vocabulary,
        jit=jit,
    )


def find_run_statistics(
    model: SegmentModel,
    config: EvalConfig,
    dynamic: DynamicConfig,
    records: Records | None,
    *,
    run: str | None,
    jit: str = "auto",
) -> GradientStatistics | None:
    """Returns the statistics of the gradients on the training split; `None` if none are needed.

    The arguments are those of `make_evaluator`; there may be no records if none are needed.
    """
    if not dynamic.has_statistics:
        return None
    if records is None or "train" not in records.splits:
        where = records.data_dir if records else "the run"
        raise UserError(
            f"rule={dynamic.rule} needs the gradients of the training split, and {where} has "
            "none: choose rule=sgd"
        )
    with Bar("gradients of train", unit="segment") as bar:

        def report(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return find_statistics(
            model,
            config,
            records.split("train"),
            dynamic.n_batches,
            folder=_find_folder(run),
            jit=jit,
            report=report,
        )


def _find_folder(run: str | None) -> str | None:
    return None if run is None else find_folder(run, DYNAMIC_NAME)
