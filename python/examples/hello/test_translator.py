from hekate.testing import conformance


def test_each_lookup_is_logged_once_and_answered_by_the_volume(translator, caplog):
    hello = translator()
    hello.write("a.txt", b"x")
    caplog.clear()
    with caplog.at_level("INFO"):
        hello.lookup("a.txt")
    assert [record.getMessage() for record in caplog.records] == ["hello, a.txt"]
    assert hello.labels()[-1] == "lookup"


def test_it_changes_nothing(translator):
    conformance(translator())
