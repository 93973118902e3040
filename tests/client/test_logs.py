import logging

import pytest

from geminga.client.observe.logs import ConsoleLogger, FileLogger, attach, detach, root
from geminga.client.options.enums import LoggerLevel
from geminga.errors import InvalidConfiguration


def test_nothing_is_printed_by_itself(capfd):
    root.warning("quiet")
    out, err = capfd.readouterr()
    assert "quiet" not in out + err


def test_console(capsys):
    handler = attach(ConsoleLogger(LoggerLevel.Warn))
    root.warning("seen")
    root.info("not seen")
    detach(handler)
    detach(handler)
    root.warning("no more")
    assert capsys.readouterr().out.count("seen") == 1


def test_a_quieter_logger_takes_nothing_from_the_others(tmp_path):
    before = root.level
    loud = attach(FileLogger(LoggerLevel.Debug, str(tmp_path / "loud.log")))
    quiet = attach(FileLogger(LoggerLevel.Error, str(tmp_path / "quiet.log")))
    root.debug("detail")
    detach(loud)
    root.error("trouble")
    detach(quiet)
    assert root.level == before
    assert "detail" in (tmp_path / "loud.log").read_text()
    assert (tmp_path / "quiet.log").read_text().count("trouble") == 1
    assert "detail" not in (tmp_path / "quiet.log").read_text()


def test_an_error_only_logger_leaves_warnings_to_the_application(caplog):
    handler = attach(ConsoleLogger(LoggerLevel.Error))
    root.warning("for the application")
    detach(handler)
    assert "for the application" in caplog.text


def test_attached_loggers_get_records_of_their_level():
    records = []
    target = logging.getLogger("somebody.else")
    target.setLevel(logging.INFO)
    target.addHandler(own := logging.Handler())
    own.emit = records.append
    handler = attach(target)
    root.info("hello")
    root.debug("too detailed")
    detach(handler)
    target.removeHandler(own)
    assert [record.getMessage() for record in records] == ["hello"]


def test_the_librarys_own_logger_and_wrong_ones():
    assert attach(None) is None
    assert attach(root) is None
    detach(None)
    with pytest.raises(InvalidConfiguration, match="logger"):
        attach("stdout")
