"""Lists what users of the Python interface rely on: names, parameters and defaults.

python -m tests.contract.interface > tests/contract/interface.txt
"""

import functools
import importlib
import inspect
import pkgutil
import sys
import typing

# All of their public names, with the parameters of functions and constructors.
PACKAGES = ("txl_tf", *(f"txl_tf.{name}" for name in ("config", "data", "layers", "release")))
PACKAGES += ("txl_tf.training",)
FUNCTIONS = ("txl_tf.presets.get", "txl_tf.presets.model", "txl_tf.presets.names")
FUNCTIONS += ("txl_tf.apps.hub_upload.push_to_hub", "txl_tf.apps.hub_upload.write_card")
# All of their public members, too.
CLASSES = ("txl_tf.LanguageModel", "txl_tf.data.Records", "txl_tf.data.Split")
CLASSES += ("txl_tf.data.Vocabulary",)
MEMBERS = {
    "txl_tf.TransformerXL": ("call", "initial_memory", "log_probs", "nll", "reset_memory"),
    "txl_tf.ModelConfig": ("count_parameters", "from_json", "to_json"),
}


def describe(path, value):
    """Returns the line of a name. Annotations are left out, as types may be renamed."""
    if inspect.ismodule(value):
        return path
    if not callable(value):
        return f"{path} = {value!r}"
    if inspect.isclass(value) and issubclass(value, Exception):
        return f"{path}: {', '.join(base.__name__ for base in value.__mro__[1:-2])}"
    signature = inspect.signature(value)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return f"{path}{inspect.Signature(parameters)}"


def list_interface():
    """Yields the lines of all names."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(set(module.__all__) - {"__version__"}):
            yield describe(f"{package}.{name}", getattr(module, name))
    for path in FUNCTIONS:
        yield describe(path, pkgutil.resolve_name(path))
    for path in (*CLASSES, *MEMBERS):
        yield from list_members(path, pkgutil.resolve_name(path), MEMBERS.get(path))
    generation = pkgutil.resolve_name("txl_tf.LanguageModel.start")
    session = typing.get_type_hints(generation)["return"]
    yield describe("Session", session)
    yield from list_members("Session", session)
    for name in ("Sampler.choose", "SamplingOptions", "StandardSampler", "draw_by_weights"):
        value = pkgutil.resolve_name(f"txl_tf.generation.sampling:{name}")
        is_dict = typing.is_typeddict(value)
        yield f"{name}: {', '.join(value.__annotations__)}" if is_dict else describe(name, value)


def list_members(path, value, names=None):
    """Yields the lines of some members of a class, by default of all public ones."""
    names = names or [name for name in dir(value) if not name.startswith("_")]
    for name in names:
        member = inspect.getattr_static(value, name)
        if isinstance(member, property | functools.cached_property):
            yield f"{path}.{name}"
        elif callable(getattr(value, name)):
            yield describe(f"{path}.{name}", getattr(value, name))


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in list_interface())
