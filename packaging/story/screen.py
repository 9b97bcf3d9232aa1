"""A program's terminal output as lines of text: enough of a terminal to read `vgpu top` on it.

It interprets positions and erasing, but not colours, wide letters or scrolling regions.
"""
import codecs
import re

# A control sequence with its parameters, a title, or another escape. An incomplete one waits for the rest.
ESCAPE = re.compile(r"\x1b(?:\[([0-9;?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0-9A-Za-z]|[=>78cDEHM])")


def plain(text):
    """Text without escapes and carriage returns."""
    return ESCAPE.sub("", text).replace("\r", "")


class Screen:
    """A screen with the given rows and columns."""

    def __init__(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.waiting = ""
        self.wipe()

    def wipe(self):
        """Clears the screen."""
        self.cells = [[" "] * self.columns for _ in range(self.rows)]
        self.row = self.column = 0

    def lines(self):
        """Text on the screen, without blanks at the ends of lines."""
        return ["".join(row).rstrip() for row in self.cells]

    def feed(self, data):
        """Interprets bytes that were written to the terminal."""
        text = self.waiting + self.decoder.decode(data)
        self.waiting, at = "", 0
        while at < len(text):
            if text[at] != "\x1b":
                self.letter(text[at])
                at += 1
                continue
            found = ESCAPE.match(text, at)
            if found is None:
                if len(text) - at < 4096:
                    self.waiting = text[at:]
                    return
                at += 1
                continue
            if found.group(2):
                self.control(found.group(1), found.group(2))
            at = found.end()

    def letter(self, letter):
        """Writes one letter, or executes a control character."""
        if letter == "\r":
            self.column = 0
        elif letter == "\b":
            self.column = max(self.column - 1, 0)
        elif letter == "\n":
            self.row += 1
            if self.row == self.rows:
                self.cells = self.cells[1:] + [[" "] * self.columns]
                self.row -= 1
        elif letter >= " ":
            if self.column == self.columns:
                self.letter("\r")
                self.letter("\n")
            self.cells[self.row][self.column] = letter
            self.column += 1

    def control(self, parameters, final):
        """Executes a control sequence."""
        if parameters.startswith("?"):
            # Switches to the alternate screen and back.
            if parameters in ("?1049", "?47") and final in "hl":
                self.wipe()
            return
        numbers = [int(number or 0) for number in parameters.split(";")] if parameters else [0]
        one = max(numbers[0], 1)
        if final in "Hf":
            self.row, self.column = one - 1, max((numbers + [1])[1], 1) - 1
        elif final in "ABCD":
            self.row += {"A": -one, "B": one}.get(final, 0)
            self.column += {"C": one, "D": -one}.get(final, 0)
        elif final in "Gd":
            self.row, self.column = (one - 1, self.column) if final == "d" else (self.row, one - 1)
        elif final == "J" and numbers[0] in (2, 3):
            self.cells = [[" "] * self.columns for _ in range(self.rows)]
        elif final == "J" and numbers[0] == 0:
            for row in range(self.row, self.rows):
                begin = self.column if row == self.row else 0
                self.cells[row][begin:] = [" "] * (self.columns - begin)
        elif final == "K":
            begin = 0 if numbers[0] else self.column
            end = min(self.column + 1, self.columns) if numbers[0] == 1 else self.columns
            self.cells[self.row][begin:end] = [" "] * (end - begin)
        elif final == "X":
            end = min(self.column + one, self.columns)
            self.cells[self.row][self.column : end] = [" "] * (end - self.column)
        self.row = min(max(self.row, 0), self.rows - 1)
        self.column = min(max(self.column, 0), self.columns)
