"""The words of the interface: distinct places, and sizes that grow with counts and parameters."""

from inferir.ir.contract import abi
from inferir.ir.contract.symbols import COUNTED

OTHERS = {"ABI_VERSION", "COUNTED", "THREADS", "COUNT_WORDS", "CTRL_WORDS", "CLAIMS_HEAD", "CLAIM_WORDS"}
WORDS = {name: place for name, place in vars(abi).items() if name.isupper() and name not in OTHERS}


def test_no_two_words_of_the_control_block_share_a_place() -> None:
    assert len(set(WORDS.values())) == len(WORDS) == 18
    assert max(WORDS.values()) < abi.CTRL_WORDS


def test_words_that_threads_wait_for_lie_in_cache_lines_of_their_own() -> None:
    lines = [WORDS[name] // 8 for name in ("TICKET", "DONE", "ROW", "EPOCH", "SLEEPERS", "STOP")]
    assert len(set(lines)) == len(lines)


def test_the_thread_count_lies_behind_the_counts() -> None:
    assert abi.THREADS == len(COUNTED) < abi.COUNT_WORDS
    assert abi.COUNT_WORDS % 8 == 0


def test_a_row_holds_the_kernel_number_and_its_parameters_in_whole_cache_lines() -> None:
    assert [abi.row_words(n) for n in (0, 1, 7, 8, 15, 16)] == [8, 8, 8, 16, 16, 24]
