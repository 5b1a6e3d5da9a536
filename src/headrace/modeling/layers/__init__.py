"""The parts a decoder is built from, recorded over the op catalogue."""
