"""Every op through the C++ library, for the instruction set found at run time."""
