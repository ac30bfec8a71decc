"""What an operator sees: the key, the log, the numbers."""

from __future__ import annotations

import gc
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.serve.serving import Hold, engine, serving, until


def test_the_key() -> None:
    with serving(engine(), api_key="s3cret") as server:
        wrong = ("Bearer s3cre", "s3cret", "Basic s3cret", "Bearer", "Bearer s3cret2")
        for headers in ({}, *({"Authorization": each} for each in wrong)):
            for answer in (server.post(headers=headers), server.http.get("/v1/models", headers=headers)):
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "s3cret" not in answer.text
        assert server.http.get("/nothing").status_code == 401
        assert [server.http.get(path).status_code for path in ("/live", "/health", "/metrics")] == [200] * 3
        for right in ({"Authorization": "Bearer s3cret"}, {"authorization": "bearer s3cret"}):
            assert server.post(headers=right, max_tokens=1).status_code == 200
        assert "s3cret" not in json.dumps(server.records)
        assert "unauthorized" in {record["event"] for record in server.records}


def test_one_line_a_request_and_never_a_text() -> None:
    with serving(engine()) as server:
        named = {"X-Request-Id": "abc"}
        answer = server.post("hidden words", max_tokens=5, seed=1, n=2, ignore_eos=True, headers=named)
        server.post("hidden words", stream=True, max_tokens=5, seed=1, stop=["hidden stop"])
        server.post("hidden words", max_tokens="hidden words")
        server.post(["hidden words", 3])
        server.post("hidden words", user="hidden user", model="hidden words")
        server.idle()
        lines = [record for record in server.records if record["event"] == "request"]
        assert [line["status"] for line in lines] == [200, 200, 400, 400, 404]
        assert [line["outcome"] for line in lines] == ["finished"] * 2 + ["refused"] * 3
        first = lines[0]
        assert (first["id"], first["model"], first["rows"]) == ("abc", "tiny", 2)
        assert (first["prompt_tokens"], first["new_tokens"], first["finish"]) == (2, 10, ["length", "length"])
        assert 0 < first["queue_s"] <= first["ttft_s"] <= first["total_s"]
        assert "queue_s" not in lines[2]
        everything = json.dumps(server.records)
        assert "hidden" not in everything
        assert answer.json()["choices"][0]["text"] not in everything


def test_requests_to_a_busy_engine_leave_no_jobs_behind() -> None:
    """They would wait until there is nothing to do, and be as many as the requests until then."""
    llm = engine()
    hold = Hold(llm)
    with serving(llm) as server, ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(server.post, max_tokens=2) for _ in range(20)]
        until(lambda: server.rows == 20)
        assert llm.llm.loop.worker._jobs.qsize() <= 1
        hold.off()
        assert [answer.result().status_code for answer in answers] == [200] * 20


def test_the_books_balance_and_an_idle_engine_is_at_zero() -> None:
    """Each number is recounted from what clients had; unrelated prompts hit nothing, and the same one does."""
    llm = engine(max_batch=2, block_size=16)
    hold = Hold(llm)
    with serving(llm, queue=4) as server, ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(server.post, [i] * 40, max_tokens=4, ignore_eos=True) for i in range(5)]
        until(lambda: server.rows == 5)
        leaver = server.open(prompt=[9] * 40)
        until(lambda: server.rows == 6)
        assert server.post().status_code == 429
        assert server.numbers()["requests_live"] == 6
        leaver.close()
        until(lambda: server.numbers()["requests_live"] == 5)
        assert server.post(temperature="hot").status_code == 400
        hold.off()
        assert [answer.result().status_code for answer in waiting] == [200] * 5
        server.idle()
        assert server.ended == {"finished": 5, "cancelled": 1, "refused": 2}
        right = {
            "requests_submitted_total": 8, "requests_live": 0, "rows_running": 0, "rows_waiting": 0, "blocks_used": 0,
            "ready": 1, "prefix_hits_tokens_total": 0, "new_tokens_total": 20, "prompt_tokens_total": 6 * 40,
            "ttft_seconds_count": 5, "ttft_seconds_bucket:+Inf": 5, "itl_seconds_count": 20 - 5,
        }  # fmt: skip
        found = server.numbers()
        assert {name: found[name] for name in right} == right
        server.post([1] * 40, max_tokens=1)
        server.idle()
        assert 0 < server.numbers()["prefix_hits_tokens_total"] <= 40


def test_requests_leave_no_objects_behind() -> None:
    found = []
    with serving(engine()) as server:
        for _ in range(2):
            for number in range(10):
                server.post(f"text {number}", stream=number % 2 == 0, max_tokens=2)
            server.idle()
            gc.collect()
            kinds = (str(type(each)) for each in gc.get_objects())
            found.append(Counter(kind for kind in kinds if kind.startswith("<class 'nanoinfer.")))
    assert found[0] == found[1]
