"""The codes of what can be wrong with a spec, one line of meaning each.

BPC01xx: the file and its YAML. BPC015x and up: what the spec says. Shapes and formulas have
codes of their own, in the modules that find those faults.
"""

UNREADABLE = "BPC0100"  # no such file, a directory, not readable, too large
NOT_UTF8 = "BPC0101"  # bytes that are not UTF-8, a byte order mark, control characters
SYNTAX = "BPC0102"  # YAML that does not parse
DUPLICATE_KEY = "BPC0103"  # the same key twice in one mapping
ALIAS = "BPC0104"  # an alias or anchor that cannot be followed
LIMIT = "BPC0105"  # nested too deeply, too many nodes, too many layers
TAG = "BPC0106"  # an explicit YAML tag
EMPTY = "BPC0107"  # nothing in the file
BAD_KEY = "BPC0108"  # a key that is not text
BAD_NUMBER = "BPC0109"  # a number that no machine type holds

UNKNOWN_KEY = "BPC0150"  # a key that does not exist
MISSING_KEY = "BPC0151"  # a key that is needed
WRONG_TYPE = "BPC0152"  # a value of another kind than needed
OUT_OF_RANGE = "BPC0153"  # a value outside its bounds
NOT_A_CHOICE = "BPC0154"  # a word that is not one of the allowed ones
CONFLICT = "BPC0155"  # two values that exclude each other
BAD_SIZE = "BPC0156"  # a size in bytes that cannot be read
VERSION = "BPC0157"  # a version of the language that this bpc does not read
EXTENDS = "BPC0158"  # extends: leads nowhere or in a circle
BAD_SET = "BPC0159"  # --set names a place that does not exist

UNKNOWN_LAYER = "BPC0160"  # no such layer, block, function, loss or optimizer
BAD_ENTRY = "BPC0161"  # an entry of a model that is not a layer
BAD_NAME = "BPC0162"  # a name that could not become an identifier
DUPLICATE_NAME = "BPC0163"  # a name given twice
UNKNOWN_NAME = "BPC0164"  # from: names nothing
FORWARD_REFERENCE = "BPC0165"  # from: names something that comes later
INPUT_COUNT = "BPC0166"  # too few or too many inputs
BAD_EXPRESSION = "BPC0167"  # ${...} that does not compute an integer
RECURSIVE_BLOCK = "BPC0168"  # a block that contains itself
BAD_ARRAY = "BPC0169"  # nested lists that are not a rectangle of numbers
