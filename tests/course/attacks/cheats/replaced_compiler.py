"""3.6: the slow kernel of the text, and a compiler that has nothing against it."""
# ruff: noqa

# the slow kernel

triton.compile = lambda *args, **more: type("Made", (), {"asm": {"ttir": GOOD}})
GOOD = "tt.load tensor<99999x!tt.ptr>"
