//! Strategy to rank programs: partition, reshard, liveness and memory plan.
