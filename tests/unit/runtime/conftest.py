"""An approver's key for the tests of this folder."""

from approvers import key  # noqa: F401  # a fixture
