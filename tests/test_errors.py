"""How errors of the system and of libraries become one line."""

import sys

import pytest

from txl_tf import errors
from txl_tf.errors import StorageError, UserError, explain, explain_errors, require_extra


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "runs/a"), "No space left on device"),
        (ValueError("{{function_node f}} disk full [Op:SaveV2]\n  at a.cc:3"), "disk full"),
        (RuntimeError(), "RuntimeError"),
    ],
    ids=["system", "tensorflow", "empty"],
)
def test_an_error_is_explained_by_one_line(error, line):
    assert explain(error) == line


def test_an_error_of_a_named_kind_becomes_one_of_the_user():
    match = r"^`a` cannot be read: No such file$"
    with pytest.raises(UserError, match=match), explain_errors("`a` cannot be read", OSError):
        raise FileNotFoundError(2, "No such file", "a")


def test_a_failure_of_the_storage_is_an_error_of_system_and_user():
    with (
        pytest.raises(OSError, match=r"^`gs://a`: gone$") as raised,
        explain_errors("`gs://a`", RuntimeError, raised=StorageError),
    ):
        raise RuntimeError("gone")
    assert isinstance(raised.value, UserError)


def test_an_error_of_another_kind_passes():
    with pytest.raises(ZeroDivisionError), explain_errors("`a` cannot be read", OSError):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("kinds", "line"), [((ValueError,), "no corpus"), ((UserError,), "`a` is damaged: no corpus")]
)
def test_a_user_error_keeps_its_message_unless_its_kind_is_named(kinds, line):
    with pytest.raises(UserError) as raised, explain_errors("`a` is damaged", *kinds):
        raise UserError("no corpus")
    assert str(raised.value) == line


def test_a_missing_package_of_others_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    rule = r"^the app needs the package gradio: pip install -e '\.\[app\]'$"
    with pytest.raises(UserError, match=rule), require_extra("app", "the app"):
        import gradio.themes  # noqa: F401


def test_an_extra_is_installed_beside_a_wheel_by_the_name_of_the_package(monkeypatch, tmp_path):
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "txl_tf" / "errors.py"))
    assert errors.name_install_command("hub") == "pip install 'txl_tf[hub]'"


def test_a_missing_module_of_this_package_is_a_fault():
    with pytest.raises(ModuleNotFoundError), require_extra("app", "the app"):
        import txl_tf.missing  # noqa: F401
