import threading

import pytest

from gmlp_flax.io.result_cache import ResultCache


def test_keeps_the_last_asked_for():
    made = []
    cache = ResultCache(lambda key: made.append(key) or key * 10, 2)
    assert [cache(key) for key in (1, 2, 1, 3, 1, 2)] == [10, 20, 10, 30, 10, 20]
    assert made == [1, 2, 3, 2]


def test_threads_share_one_call_and_do_not_wait_for_other_keys():
    made, release = [], threading.Event()

    def make(key):
        made.append(key)
        if key == "slow":
            assert release.wait(10)
        return key

    cache, found = ResultCache(make, 2), []
    threads = [threading.Thread(target=lambda: found.append(cache("slow"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert cache("quick") == "quick"
    release.set()
    for thread in threads:
        thread.join()
    assert found == ["slow"] * 4 and sorted(made) == ["quick", "slow"]


def test_an_error_is_not_kept():
    answers = iter([ValueError("first"), "second"])

    def make(_):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cache = ResultCache(make, 2)
    with pytest.raises(ValueError, match="first"):
        cache(0)
    assert cache(0) == "second"
