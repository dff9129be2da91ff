import ast
import subprocess
import sys
import tomllib

import pytest
from places import ROOT

PACKAGE = ROOT / "txl_tf"
# What a part may import of the package, beside itself, the errors and the version. A part is a
# folder or a module at the root; those above it come after it.
PARTS = {
    "errors": set(),
    "quiet_start": set(),
    "version": set(),
    "config": set(),
    "presets": {"config"},
    "layers": {"config"},
    "model": {"config", "layers"},
    "compilation": {"layers"},
    "cached_model": {"config", "layers", "model"},
    "architectures": {"config", "layers", "model", "cached_model"},
    "data": {"config", "quiet_start"},
    "preparation": {"config", "data"},
    "runs": {"config", "presets", "model", "data"},
    "evaluation": {
        *("config", "presets", "model", "compilation", "cached_model", "architectures", "data"),
        "runs",
    },
    "training": {
        *("config", "layers", "model", "compilation", "architectures", "data", "runs"),
        "evaluation",
    },
    "dynamic": {
        *("config", "model", "compilation", "cached_model", "architectures", "data", "runs"),
        *("evaluation", "training"),
    },
    "sharing": {"config", "model", "data", "runs", "evaluation"},
    "inference": {
        *("config", "presets", "layers", "model", "compilation", "cached_model", "data", "runs"),
        *("architectures", "evaluation", "dynamic", "sharing"),
    },
    "analysis": {
        *("config", "layers", "model", "compilation", "cached_model", "architectures", "data"),
        *("runs", "evaluation", "inference"),
    },
    "server": {"config", "data", "runs", "inference"},
    "release": {"config", "presets", "model", "data", "runs"},
    "pipelines": {"config", "data", "preparation", "evaluation", "inference"},
    "cli": {
        *(
            "pipelines",
            "config",
            "presets",
            "compilation",
            "data",
            "runs",
            "evaluation",
            "training",
        ),
        *("inference", "release", "quiet_start"),
    },
}
# Beside what its part may import.
MORE = {"release/importing.py": {"training"}}
STANDARD_LIBRARY = set(sys.stdlib_module_names)
OUTSIDE = {  # of other packages; those that are not named here may import what they need
    "errors": set(),
    "version": set(),
    "config": set(),
    "presets": set(),
    "layers": {"keras"},
    "model": {"keras"},
}
FORBIDDEN_OUTSIDE = {
    "data": {"keras", "jax"},
    "preparation": {"tensorflow", "tensorflow_text", "keras", "jax"},
}
# What people run. Those in a part are called as they always were.
PROGRAMS = {
    *("analysis/page.py", "analysis/samples.py", "data/inspect.py", "training/average.py"),
    *("attention.py", "context.py", "evaluate.py", "export.py", "export_release.py"),
    *("generate.py", "harness.py", "import_release.py", "make_tfrecords.py", "score.py"),
    *("serve.py", "train_gpu.py", "train_tpu.py", "verify_release.py"),
}

OWN_FILES = [*PACKAGE.rglob("*.py"), *(ROOT / "data_prep").rglob("*.py"), *ROOT.glob("train_*.py")]
PRIVATE_PACKAGES = (
    *("keras.src.", "tensorflow.python.", "tensorflow.compiler.", "tensorflow.__internal__."),
)
# Public in spite of the underscore: NamedTuple has no other place for its methods.
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}


def list_modules(source):
    """Returns what a file imports anywhere in it: `from a import b` is "a" and "a.b"."""
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            modules |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return modules


def names_distribute(source):
    """Returns whether code (not a comment, not a docstring) names `tf.distribute`."""
    attributes = {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("tf", "tensorflow")
    }
    return "distribute" in attributes or any(
        module.startswith("tensorflow") and "distribute" in module.split(".")
        for module in list_modules(source)
    )


def is_private(name):
    is_dunder = name.startswith("__") and name.endswith("__")
    return name.startswith("_") and name.strip("_") != "" and not is_dunder


def is_of_own_object(node):
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def list_private_definitions(source):
    """Returns the names with an underscore that a file defines: functions, classes, attributes."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if is_of_own_object(node) else set()
    return set(filter(is_private, names))


def list_private_uses(source):
    """Returns the names with an underscore that a file reads: on `self` or alone, and on others."""
    own, foreign = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and is_of_own_object(node):
            own |= {node.attr} if isinstance(node.ctx, ast.Load) else set()
        elif isinstance(node, ast.Attribute):
            foreign.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr"):
            name = node.args[1]
            foreign |= {name.value} if isinstance(name, ast.Constant) else set()
    return tuple(set(filter(is_private, names)) - NAMED_TUPLE for names in (own, foreign))


def list_private_modules(source):
    """Returns the modules that a file names, imported or as attributes, and that are not public."""
    modules = list_modules(source)
    chains = {ast.unparse(n) for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute)}
    chains = {chain.replace("tf.", "tensorflow.", 1) for chain in chains}
    return {name for name in modules if any(map(is_private, name.split(".")))} | {
        name for name in modules | chains if f"{name}.".startswith(PRIVATE_PACKAGES)
    }


def list_files(part):
    file, folder = PACKAGE / f"{part}.py", PACKAGE / part
    return [file] if file.exists() else sorted(folder.rglob("*.py"))


def list_package_files():
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in PACKAGE.rglob("*.py")]


def list_part_files():
    return [
        pytest.param(part, path, id=str(path.relative_to(ROOT)))
        for part in PARTS
        for path in list_files(part)
    ]


@pytest.mark.parametrize(("part", "path"), list_part_files())
def test_a_part_imports_only_the_parts_below_it(part, path):
    modules = [module.split(".") for module in list_modules(path.read_text())]
    imported = {names[1] for names in modules if names[0] == "txl_tf" and len(names) > 1}
    parts = {name for name in imported if list_files(name)}
    name = path.relative_to(PACKAGE).as_posix()
    programs = {"cli"} if name in PROGRAMS else set()
    assert parts <= PARTS[part] | {part, "errors", "version"} | MORE.get(name, set()) | programs


def test_every_file_is_of_a_part_or_a_program():
    files = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    of_parts = {path.relative_to(PACKAGE).as_posix() for part in PARTS for path in list_files(part)}
    assert files == of_parts | PROGRAMS | {"__init__.py"}


def test_every_program_is_a_command():
    """And the commands start no other."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    modules = [target.removesuffix(":main") for target in scripts.values()]
    names = ["txl_tf." + name.removesuffix(".py").replace("/", ".") for name in PROGRAMS]
    assert sorted(modules) == sorted(names)
    assert all(command.startswith("txl-") for command in scripts)


def test_every_part_is_there_and_stands_above_what_it_imports():
    names = list(PARTS)
    for index, (part, below) in enumerate(PARTS.items()):
        assert list_files(part), part
        assert below <= set(names[:index]), part


def test_no_file_imports_itself_by_way_of_others():
    modules = {
        ".".join(("txl_tf", *path.relative_to(PACKAGE).with_suffix("").parts)): path
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }
    arrows = {
        name: list_modules(path.read_text()) & set(modules) - {name}
        for name, path in modules.items()
    }
    while leaves := {name for name, targets in arrows.items() if not targets & set(arrows)}:
        arrows = {name: targets for name, targets in arrows.items() if name not in leaves}
    assert not arrows


def test_the_root_is_small():
    assert len(list(PACKAGE.glob("*.py"))) <= 21


@pytest.mark.parametrize(("part", "path"), list_part_files())
def test_a_part_imports_only_the_packages_it_may(part, path):
    modules = {module.split(".")[0] for module in list_modules(path.read_text())}
    outside = modules - STANDARD_LIBRARY - {"txl_tf"}
    assert outside <= OUTSIDE.get(part, outside)
    assert not outside & FORBIDDEN_OUTSIDE.get(part, set())


@pytest.mark.parametrize("path", list_package_files())
def test_imports_are_absolute(path):
    assert not {module for module in list_modules(path.read_text()) if module.startswith(".")}


@pytest.mark.parametrize("path", list_package_files())
def test_only_training_knows_distribution(path):
    assert (PACKAGE / "training") in path.parents or not names_distribute(path.read_text())


@pytest.mark.parametrize("path", list_package_files())
def test_only_pipelines_know_beam(path):
    modules = {module.split(".")[0] for module in list_modules(path.read_text())}
    assert (PACKAGE / "pipelines") in path.parents or "apache_beam" not in modules


@pytest.mark.parametrize("path", list_package_files())
def test_only_programs_know_flags(path):
    knows = any(module.startswith("absl") for module in list_modules(path.read_text()))
    name = path.relative_to(PACKAGE).as_posix()
    assert not knows or name in PROGRAMS or name.startswith("cli/")


def test_the_reference_knows_numpy_and_configs_alone():
    """What it judges must not be what it computes with."""
    modules = list_modules((PACKAGE / "release" / "reference.py").read_text())
    outside = {module.split(".")[0] for module in modules} - STANDARD_LIBRARY
    assert outside == {"numpy", "txl_tf"}
    own = {module for module in modules if module.startswith("txl_tf.")}
    assert all(module.startswith("txl_tf.config") for module in own)


def list_own_files():
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in OWN_FILES]


@pytest.mark.parametrize("path", list_own_files())
def test_no_file_uses_private_names_of_others(path):
    _, foreign = list_private_uses(path.read_text())
    assert foreign <= list_private_definitions(path.read_text())


@pytest.mark.parametrize("path", list_own_files())
def test_no_file_names_private_modules(path):
    assert not list_private_modules(path.read_text())


def test_private_names_of_an_object_are_its_own():
    """A class that inherits from another package neither reads nor overrides its private names."""
    sources = [path.read_text() for path in OWN_FILES]
    defined = set().union(*map(list_private_definitions, sources))
    uses = [list_private_uses(source) for source in sources]
    own = set().union(*(own for own, _ in uses))
    foreign = set().union(*(foreign for _, foreign in uses))
    assert own <= defined
    assert defined <= own | foreign  # one that only another package calls


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: path.name)
def test_no_test_module_imports_another(path):
    modules = {module.split(".")[-1] for module in list_modules(path.read_text())}
    assert not {module for module in modules if module.startswith("test_")}


def test_imports_within_functions_and_aliases_are_seen():
    source = "def f():\n    from a.b import c as d\nif x:\n    import e.f as g\nfrom . import h"
    assert list_modules(source) == {"a.b", "a.b.c", "e.f", ".", "..h"}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import tensorflow as tf\ntf.distribute.Strategy", True),
        ("import tensorflow\ntensorflow.distribute.Strategy", True),
        ("from tensorflow import distribute", True),
        ("from tensorflow.python.distribute import values", True),
        ('"""tf.distribute stays out."""\ntf.function', False),
    ],
)
def test_distribution_is_recognised(source, names):
    assert names_distribute(source) is names


def test_private_names_are_recognised():
    source = (
        "class A(B):\n    _a: int\n    def _b(self): self._c = self._d + x._e.__name__\n"
        "_f = _g(getattr(y, '_h'), z._replace(_i=1)).j_\nself.k._l = 1"
    )
    assert list_private_definitions(source) == {"_a", "_b", "_c", "_f"}
    assert list_private_uses(source) == ({"_d", "_g"}, {"_e", "_h", "_l"})


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from keras.src import backend", {"keras.src", "keras.src.backend"}),
        ("import keras\nkeras.src", {"keras.src"}),
        ("import tensorflow.python.framework", {"tensorflow.python.framework"}),
        ("import tensorflow as tf\ntf.python", {"tensorflow.python"}),
        ("tf.__internal__", {"tensorflow.__internal__"}),
        ("from a._b import c", {"a._b", "a._b.c"}),
        ("from a import _b", {"a._b"}),
        ("from a import __version__\nimport keras.ops", set()),
    ],
)
def test_private_modules_are_recognised(source, names):
    assert list_private_modules(source) == names


@pytest.mark.parametrize(
    "statement",
    ["import txl_tf", "import txl_tf.config", "import txl_tf.presets", "txl_tf.ModelConfig"],
)
def test_configs_need_no_backend(statement):
    program = f"import sys, txl_tf; {statement}; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(ran.stdout.split())
    assert "txl_tf" in loaded
    assert not {"tensorflow", "keras", "jax", "numpy"} & loaded
