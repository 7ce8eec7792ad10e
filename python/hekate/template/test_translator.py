import pytest

from hekate.testing import conformance


def test_a_hidden_name_is_not_found(translator, volume):
    layer = translator(suffix=".key")
    volume.write("a.key", b"x")
    volume.write("a.txt", b"x")
    with pytest.raises(FileNotFoundError):
        layer.lookup("a.key")
    assert layer.read("a.txt") == b"x"
    assert layer.metrics()["counts"] == {"hidden": 1}


def test_without_such_names_it_changes_nothing(translator):
    conformance(translator())
