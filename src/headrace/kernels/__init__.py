"""The arithmetic: a catalogue of ops (`ops`), and back ends that implement it."""
