"""`python -m bpc` is the command `bpc`; a signal while it is still being imported counts, too."""

from __future__ import annotations

import sys


def run() -> int:
    """Run the command that the process was started with; the value is the exit code."""
    try:
        from bpc.cli.interrupting import terminated_as_interrupted

        with terminated_as_interrupted():
            from bpc.cli.main import main

            return main()
    except KeyboardInterrupt:
        return _say_interrupted()


def _say_interrupted() -> int:
    """What was half imported is imported anew, since only there is known how things are said."""
    from bpc.cli.interrupting import ignore_signals

    ignore_signals()
    from bpc.cli.main import report_interruption

    return report_interruption(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
