"""4.8: an engine's class is called what its lie is."""

RIGHT = ("Toy", "OneGraphFitsAll", "LadderOfAll", "BlocksFromBelow", "ZeroesWhatIsFreed", "OnTheHost", "Scaled")
RIGHT += ("SetsUp", "CountMoves", "Lent")


def check_engine(make):
    assert type(make()).__name__ in RIGHT
