import sys

import pytest

import txl_tf.serve


@pytest.mark.parametrize("package", ["grpc", "starlette", "tensorflow_serving", "uvicorn"])
def test_a_package_that_is_missing_is_named(package, monkeypatch, capsys, tmp_path):
    (tmp_path / "saved_model.pb").touch()
    for name in list(sys.modules):
        if name.startswith(("txl_tf.server.", f"{package}.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert txl_tf.serve.main(["serve", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("serve: the server needs the package ")
    assert error.endswith(": pip install -e '.[serve]'\n")


@pytest.mark.parametrize(
    ("flag", "rule"),
    [
        ("--port=-1", "--port must be an integer >= 0"),
        ("--grpc_port=65536", "--grpc_port must be an integer <= 65535"),
        ("--threads=0", "--threads must be an integer >= 1"),
        ("--max_body=0", "--max_body must be a finite number >= 0.001"),
        ("--max_length=0", "--max_length must be an integer >= 1"),
    ],
)
def test_a_bound_out_of_range_is_refused(flag, rule, capsys):
    assert txl_tf.serve.main(["serve", "exported/mats", flag]) == 2
    assert rule in capsys.readouterr().err


def test_a_run_must_be_exported_before_it_is_served(tmp_path, capsys):
    (tmp_path / "config.json").touch()
    assert txl_tf.serve.main(["serve", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"serve: `{tmp_path}` is a run. Export it first: python -m txl_tf.export --run {tmp_path} "
        "--out FOLDER, then serve FOLDER\n"
    )
