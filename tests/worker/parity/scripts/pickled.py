import witness  # noqa: F401, I001
import copy
import pickle


class Point:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return self.x == other.x


class Outer:
    class Inner(Point):
        pass


data = pickle.dumps([Point(1), Outer.Inner(2)])
print(data, pickle.loads(data) == [Point(1), Outer.Inner(2)], copy.deepcopy(Point(3)).x)  # noqa: S301
print(Point.__module__, Outer.Inner.__qualname__)
