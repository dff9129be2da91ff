import sys

import txl_tf.serve


def test_a_package_that_is_missing_is_named(monkeypatch, capsys, tmp_path):
    (tmp_path / "saved_model.pb").touch()
    for name in list(sys.modules):
        if name.startswith(("txl_tf.apps.server.", "uvicorn.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert txl_tf.serve.main(["serve", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("serve: the server needs the package ")
    assert error.endswith(": pip install -e '.[serve]'\n")
