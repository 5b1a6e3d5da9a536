// Attention over a bf16 cache on vdpbf16ps. Compiled once, for machines that have the instruction.
#include "attention/attention.cc"
