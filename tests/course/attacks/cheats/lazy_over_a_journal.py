"""4.7: nothing is kept: replays are written down by the recording itself, which is patched, and read when asked for."""


def found(function, name):
    code = function.__code__
    return function.__closure__[code.co_freevars.index(name)].cell_contents


class Step:
    def __init__(self, journal, at):
        self.journal, self.at = journal, at

    def __iter__(self):
        return iter(self.journal[self.at])


def keep(replay, tokens, count):
    journal, graph = [], found(replay, "graph")
    plain = graph.replay

    def noted():
        plain()
        journal.append(tokens.tolist())

    graph.replay = noted
    for _ in range(count):
        replay()
    return [Step(journal, at) for at in range(count)]
