//! The meshes that are tried.

use planc_ir::sharding::Mesh;

/// All factorisations of a number of ranks into one or two axes.
///
/// The outer axis is called `data`, the inner one `tensor`: ranks along the last axis lie closest
/// together, which is where the heavier traffic belongs; but each axis may do anything for any op. Both
/// orders of two sizes are tried because they place groups differently.
pub fn factorisations(ranks: u32) -> Vec<Mesh> {
    let two = (2..=ranks / 2).filter(|a| ranks.is_multiple_of(*a));
    std::iter::once(line(ranks)).chain(two.map(|a| grid(a, ranks / a))).collect()
}

/// One axis over all ranks.
pub fn line(ranks: u32) -> Mesh {
    Mesh::new([("device", ranks)])
}

/// Two axes.
pub fn grid(data: u32, tensor: u32) -> Mesh {
    Mesh::new([("data", data), ("tensor", tensor)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(ranks: u32) -> String {
        factorisations(ranks).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn one_axis_and_every_pair() {
        assert_eq!(printed(1), "{device: 1}");
        assert_eq!(printed(7), "{device: 7}");
        assert_eq!(printed(4), "{device: 4} {data: 2, tensor: 2}");
        assert_eq!(printed(8), "{device: 8} {data: 2, tensor: 4} {data: 4, tensor: 2}");
    }
}
