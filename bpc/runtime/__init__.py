"""What runs a program: NumPy (`reference`) or compiled C++ (`cpu`)."""
