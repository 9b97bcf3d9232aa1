"""An interactive bash on a terminal of its own, which runs commands as if they were typed and returns their output."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import tempfile
import termios
import time

from screen import Screen, plain

# Seconds after which missing output counts as a failure.
LONG = 90
# The prompt with the exit code of the previous command, and the text that a failed command leaves in between.
PROMPT = re.compile(rb"<<(\d+) ready>>")
FAILED = re.compile(r"^<<(\d+) of (.*)$", re.M)


class NotSo(Exception):
    """An expectation that failed; the message names it."""


def expect(so, words):
    """Raises `NotSo` if the condition is false."""
    if not so:
        raise NotSo(f"expected: {words}")


def until(words, so, look=lambda: time.sleep(0.05)):
    """Waits until the condition is true."""
    end = time.monotonic() + LONG
    while not so():
        expect(time.monotonic() < end, f"{words}, within {LONG} s")
        look()


class Shell:
    """The shell, and everything written to its terminal."""

    def __init__(self, rows, columns):
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.execvp("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"])
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen = Screen(rows, columns)
        self.written, self.begun = b"", 0
        # The prompt's parts are typed with quotes in between, so that none of them appears in the echo.
        self.press("unset HISTFILE; stty -echo; PS1='<''<$? ready>''>'; PS2=; trap 'echo \"<\"\"<$? of $BASH_COMMAND\"' ERR\r")
        self.until("a prompt", lambda: PROMPT.search(self.written))

    def look(self):
        """Reads output, and waits a little for it."""
        if select.select([self.terminal], [], [], 0.05)[0]:
            try:
                data = os.read(self.terminal, 65536)
            except OSError as why:
                raise NotSo("expected: the shell to stay") from why
            self.written += data
            self.screen.feed(data)

    def until(self, words, so):
        """Waits until the condition is true, and reads output meanwhile."""
        until(words, so, self.look)

    def press(self, keys):
        """Presses keys."""
        os.write(self.terminal, keys.encode())

    def run(self, commands, meanwhile=None, kept=None):
        """Runs commands in this shell, with the jobs and variables of earlier ones. Returns the result of
        `meanwhile`."""
        self.begun, told = len(self.written), None
        self.screen.wipe()
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
            file.write(commands)
            file.flush()
            self.press(f". {file.name}\r")
            if meanwhile:
                told = meanwhile(self, kept)
            self.until("the end of the commands", lambda: PROMPT.search(self.written, self.begun))
        failed = FAILED.search(self.said())
        expect(failed is None, failed and f"success of `{failed[2]}`, not code {failed[1]}")
        code = PROMPT.search(self.written, self.begun)[1].decode()
        expect(code == "0", f"success of the last command, not code {code}")
        return told

    def said(self):
        """Output of the last commands, without escapes."""
        return plain(self.written[self.begun :].decode("utf-8", "replace"))

    def last(self):
        """The end of the output, for messages."""
        screen = [line for line in self.screen.lines() if line]
        lines = ["--- on the screen:", *screen, "--- written:", *self.said().splitlines()[-60:]]
        return "\n".join(f"     | {line}" for line in lines)

    def end(self):
        """Ends the shell and waits for it."""
        self.press("exit\r")
        until("the shell ends", lambda: os.waitpid(self.child, os.WNOHANG)[0] == self.child)
        os.close(self.terminal)


# A reader that closed the pipe is no reason for a traceback.
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
