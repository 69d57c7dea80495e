"""Runs rdma-core's own Python tests, of one module, and says in one line each how they went.

    run.py --unpack DIR             the tests as Debian's python3-pyverbs brings them, uncompressed, in DIR
    run.py DIR MODULE [--dev D --gid N ...]

Each test gives one line on stdout: PASS, SKIP or FAIL, its name, and behind a `#` the reason. What goes wrong is explained
on stderr. The options behind the module are those of the tests.
"""

import gzip
import importlib
import os
import shutil
import sys
import types
import unittest

SOURCES = "/usr/share/doc/rdma-core/tests"


def unpack(to):
    """Copies the sources, of which Debian compresses the longer ones."""
    os.makedirs(to)
    for name in os.listdir(SOURCES):
        source = os.path.join(SOURCES, name)
        if name.endswith(".py.gz"):
            with gzip.open(source) as packed, open(os.path.join(to, name[:-3]), "wb") as plain:
                shutil.copyfileobj(packed, plain)
        elif name.endswith(".py"):
            shutil.copy(source, to)


class Result(unittest.TestResult):
    """Says each result when it is known."""

    def say(self, verdict, test, reason=""):
        reason = " ".join(reason.split())
        print(f"{verdict} {test.id()}" + (f"  # {reason}" if reason else ""), flush=True)

    def wrong(self, test, error):
        self.say("FAIL", test, str(error[1]))
        print(self._exc_info_to_string(error, test), file=sys.stderr, flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.say("PASS", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say("SKIP", test, reason)

    def addError(self, test, err):
        super().addError(test, err)
        self.wrong(test, err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.wrong(test, err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self.wrong(test, err)

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.say("PASS", test)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.say("FAIL", test, "passes where its authors expect a failure")


def run(directory, module):
    """Runs the tests of `module` in this process."""
    # The package's own __init__ imports every module; an empty package of the same name imports what it is asked for.
    package = types.ModuleType("tests")
    package.__path__ = [directory]
    sys.modules["tests"] = package
    sys.path.insert(0, directory)
    from args_parser import parser

    parser.parse_args()
    # Imported first, as the package would: `efa_base` and `utils` import each other, in this order only.
    importlib.import_module("tests.utils")
    suite = unittest.defaultTestLoader.loadTestsFromName(f"tests.{module}")
    return suite.run(Result())


def main():
    if sys.argv[1] == "--unpack":
        unpack(sys.argv[2])
        return
    directory, module = sys.argv[1:3]
    del sys.argv[1:3]
    result = run(directory, module)
    sys.exit(not result.wasSuccessful())


main()
