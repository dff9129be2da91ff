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
