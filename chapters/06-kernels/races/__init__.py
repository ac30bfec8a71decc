"""Kernels that raced: five defects of real ones, made small. The text is ../kernels-that-raced.md."""
