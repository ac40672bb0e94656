"""A simulation of a fleet that is larger than any machine here: `./dev bench fleet-sim`.

Plain Python and seeded. Hosts and clients are simulated; where a session goes is decided by the
function that the fleet itself uses (`cellwall.fleet.placement`).
"""

from fleet_sim.bench import measure

__all__ = ["measure"]
