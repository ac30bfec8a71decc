"""1.6: asks the functions that it was lent, and never reads an answer: the grader waits until it can write one."""

import json
import struct
import sys


def generate(logits_of, prompt, max_tokens, choose, stop_ids, context):
    frame = sys._getframe(1)
    replies = frame.f_locals["self"].replies
    text = json.dumps({"op": "ask", "function": 0, "args": [[1] * 30]}).encode()
    while True:
        replies.write(struct.pack("<4sIQ", b"NIC1", len(text), 0) + text)
        replies.flush()
