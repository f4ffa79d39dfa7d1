//! Windows that move over spatial dimensions: what convolution and pooling share.

use super::decode::Decoder;
use crate::OpError;
use crate::graph::TensorType;
use crate::program::Window;

/// Largest number of spatial dimensions.
pub const MAX_SPATIAL: usize = 3;

/// Checks that operand `index` has samples, channels and a number of spatial dimensions that is supported.
pub fn check_rank(index: usize, x: &TensorType) -> Result<(), OpError> {
    match x.rank() {
        rank if (3..=2 + MAX_SPATIAL).contains(&rank) => Ok(()),
        found => Err(OpError::Rank { index, found, expected: "3 to 5".into() }),
    }
}

/// How padding is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoPad {
    /// As the attribute `pads` says.
    Explicit,
    /// None.
    Valid,
    /// As much as it takes to keep the extent (divided by the stride), more of it behind.
    SameUpper,
    /// The same, more of it in front.
    SameLower,
}

impl AutoPad {
    /// Reads the attribute `auto_pad`.
    pub fn decode(d: &Decoder<'_>) -> Result<Self, OpError> {
        Ok(match d.string_or("auto_pad", "NOTSET")?.as_str() {
            "NOTSET" | "" => Self::Explicit,
            "VALID" => Self::Valid,
            "SAME_UPPER" => Self::SameUpper,
            "SAME_LOWER" => Self::SameLower,
            other => {
                let why = format!("{other:?} is none of NOTSET, VALID, SAME_UPPER, SAME_LOWER");
                return Err(OpError::BadAttribute { name: "auto_pad", why });
            }
        })
    }

    /// Padding in front and behind that is this much together.
    pub const fn divide(self, total: u64) -> (u64, u64) {
        let (small, large) = (total / 2, total.div_ceil(2));
        if matches!(self, Self::SameUpper) { (small, large) } else { (large, small) }
    }
}

/// Reads strides, dilations and padding of a window of these extents over an input of these
/// spatial extents. `auto_pad` is resolved into numbers.
pub fn decode(d: &Decoder<'_>, spatial: &[u64], extents: &[u64]) -> Result<Window, OpError> {
    let mut window = explicit(d, spatial.len())?;
    let auto = AutoPad::decode(d)?;
    for i in 0..spatial.len() {
        (window.before[i], window.after[i]) = match auto {
            AutoPad::Explicit => continue,
            AutoPad::Valid => (0, 0),
            AutoPad::SameUpper | AutoPad::SameLower => {
                let stride = window.strides[i];
                let out = u128::from(spatial[i].div_ceil(stride));
                let reach = reach(extents[i], window.dilations[i]);
                let needed = out.saturating_sub(1) * u128::from(stride) + reach;
                let total = needed.saturating_sub(u128::from(spatial[i]));
                let total = u64::try_from(total).map_err(|_| OpError::BadAttribute {
                    name: "auto_pad",
                    why: format!("would pad axis {i} by {total}"),
                })?;
                auto.divide(total)
            }
        };
    }
    Ok(window)
}

/// Strides, dilations and padding as the attributes give them, whatever `auto_pad` says.
pub fn explicit(d: &Decoder<'_>, rank: usize) -> Result<Window, OpError> {
    let positive = |name: &'static str| -> Result<Vec<u64>, OpError> {
        let list = d.ints(name)?.unwrap_or_else(|| vec![1; rank]);
        let checked: Option<Vec<u64>> =
            list.iter().map(|&x| u64::try_from(x).ok().filter(|&x| x > 0)).collect();
        checked.filter(|l| l.len() == rank).ok_or_else(|| OpError::BadAttribute {
            name,
            why: format!("{list:?} are not {rank} positive numbers"),
        })
    };
    let (strides, dilations) = (positive("strides")?, positive("dilations")?);
    let pads = extents(d, "pads", 2 * rank)?.unwrap_or_else(|| vec![0; 2 * rank]);
    let (before, after) = (pads[..rank].to_vec(), pads[rank..].to_vec());
    Ok(Window { strides, dilations, before, after })
}

/// The attribute `name`, a list of `count` numbers that are not negative.
pub fn extents(
    d: &Decoder<'_>,
    name: &'static str,
    count: usize,
) -> Result<Option<Vec<u64>>, OpError> {
    let Some(list) = d.ints(name)? else { return Ok(None) };
    let checked: Option<Vec<u64>> = list.iter().map(|&x| u64::try_from(x).ok()).collect();
    let checked = checked.filter(|l| l.len() == count).ok_or_else(|| {
        let why = format!("expected {count} numbers, none negative, found {list:?}");
        OpError::BadAttribute { name, why }
    })?;
    Ok(Some(checked))
}

/// How far a dilated window reaches.
pub fn reach(extent: u64, dilation: u64) -> u128 {
    u128::from(extent.saturating_sub(1)) * u128::from(dilation) + 1
}

/// The output's spatial extents. With `ceil`, a last window that is cut off counts if it starts
/// inside the input or the padding before it.
pub fn output(
    spatial: &[u64],
    extents: &[u64],
    window: &Window,
    ceil: bool,
) -> Result<Vec<u64>, OpError> {
    let rank = spatial.len();
    let lists = [&window.strides, &window.dilations, &window.before, &window.after];
    if extents.len() != rank || lists.iter().any(|l| l.len() != rank) {
        return Err(OpError::Invalid(format!("has {rank} spatial dimensions, its window others")));
    }
    if extents.contains(&0) || window.strides.contains(&0) || window.dilations.contains(&0) {
        return Err(OpError::Invalid("has an empty window, or a stride or dilation of 0".into()));
    }
    let extent = |i: usize| {
        let stride = u128::from(window.strides[i]);
        let reached = u128::from(spatial[i]) + u128::from(window.before[i]);
        let padded = reached + u128::from(window.after[i]);
        let room = padded.checked_sub(reach(extents[i], window.dilations[i])).ok_or_else(|| {
            OpError::Invalid(format!("has a window larger than spatial axis {i} with its padding"))
        })?;
        let mut steps = if ceil { room.div_ceil(stride) } else { room / stride };
        if ceil && steps * stride >= reached {
            steps = steps.saturating_sub(1);
        }
        u64::try_from(steps + 1).map_err(|_| OpError::Invalid("has a result too large".into()))
    };
    (0..rank).map(extent).collect()
}

/// The spatial extents of which the window's [`output`] is an input of these: what a transposed
/// convolution makes, with `extra` positions behind that no window reaches.
pub fn transposed_output(
    spatial: &[u64],
    extents: &[u64],
    window: &Window,
    extra: &[u64],
) -> Result<Vec<u64>, OpError> {
    let rank = spatial.len();
    let lists = [&window.strides, &window.dilations, &window.before, &window.after];
    if extents.len() != rank || extra.len() != rank || lists.iter().any(|l| l.len() != rank) {
        return Err(OpError::Invalid(format!("has {rank} spatial dimensions, its window others")));
    }
    if [spatial, extents, &window.strides, &window.dilations].iter().any(|l| l.contains(&0)) {
        return Err(OpError::Invalid("has an empty input or window, or a stride of 0".into()));
    }
    let extent = |i: usize| {
        let last = u128::from(window.strides[i]) * u128::from(spatial[i] - 1);
        let padding = u128::from(window.before[i]) + u128::from(window.after[i]);
        let reach = last + reach(extents[i], window.dilations[i]) + u128::from(extra[i]);
        let extent = reach.checked_sub(padding).and_then(|n| u64::try_from(n).ok());
        extent.ok_or_else(|| {
            let why = format!("has no result along spatial axis {i}: {reach} less {padding}");
            OpError::Invalid(why)
        })
    };
    (0..rank).map(extent).collect()
}

/// How many positions of the padded input no window reaches, behind those that some do: the `extra` with
/// which a transposed convolution of `out` makes an input of these extents.
pub fn unreached(spatial: &[u64], extents: &[u64], out: &[u64], window: &Window) -> Vec<u64> {
    let behind = |i: usize| {
        let padded =
            u128::from(spatial[i]) + u128::from(window.before[i]) + u128::from(window.after[i]);
        let last = u128::from(window.strides[i]) * u128::from(out[i].saturating_sub(1));
        let reached = last + reach(extents[i], window.dilations[i]);
        u64::try_from(padded.saturating_sub(reached)).unwrap_or(u64::MAX)
    };
    (0..spatial.len()).map(behind).collect()
}

/// The elements of a window that lie inside the input: pairs of their index in the window and in
/// the input, both row-major. `at` is the output position.
pub fn taps(
    at: &[usize],
    spatial: &[u64],
    extents: &[u64],
    window: &Window,
) -> Vec<(usize, usize)> {
    let mut taps = vec![(0usize, 0usize)];
    for (i, &c) in at.iter().enumerate() {
        let start =
            i128::from(c as u64) * i128::from(window.strides[i]) - i128::from(window.before[i]);
        let (n, dilation) = (i128::from(spatial[i]), i128::from(window.dilations[i]));
        let first = (-start).max(0).div_euclid(dilation)
            + i128::from((-start).max(0).rem_euclid(dilation) != 0);
        let last = (n - 1 - start).div_euclid(dilation).min(i128::from(extents[i]) - 1);
        taps = taps
            .into_iter()
            .flat_map(|(w, x)| {
                (first..=last).map(move |k| {
                    let inside = (start + k * dilation) as usize;
                    // A pooling window may be too large to be numbered; nobody reads the number.
                    let number = w.wrapping_mul(extents[i] as usize).wrapping_add(k as usize);
                    (number, x * n as usize + inside)
                })
            })
            .collect();
    }
    taps
}

/// How many elements of a window lie inside the input or its padding.
pub fn covered(at: &[usize], spatial: &[u64], extents: &[u64], window: &Window) -> f64 {
    let along = |(i, &c): (usize, &usize)| {
        let start = u128::from(c as u64) * u128::from(window.strides[i]);
        let padded =
            u128::from(spatial[i]) + u128::from(window.before[i]) + u128::from(window.after[i]);
        let room = padded.saturating_sub(start).div_ceil(u128::from(window.dilations[i]));
        room.min(u128::from(extents[i])) as f64
    };
    at.iter().enumerate().map(along).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(stride: u64, dilation: u64, before: u64, after: u64) -> Window {
        Window {
            strides: vec![stride],
            dilations: vec![dilation],
            before: vec![before],
            after: vec![after],
        }
    }

    #[test]
    fn extents_round_down_or_up() {
        let out = |w: &Window, ceil| output(&[6], &[3], w, ceil).map(|v| v[0]);
        assert_eq!(out(&window(2, 1, 0, 0), false), Ok(2));
        assert_eq!(out(&window(2, 1, 0, 0), true), Ok(3));
        assert!(out(&window(1, 3, 0, 0), false).is_err());
        assert!(out(&window(1, 1, u64::MAX, 0), false).is_err());
        // The second window would start in the padding behind.
        assert_eq!(output(&[2], &[1], &window(2, 1, 0, 1), true), Ok(vec![1]));
    }

    #[test]
    fn taps_are_those_inside() {
        let w = window(2, 2, 3, 3);
        let all = |c: usize| {
            (0..3u64)
                .map(|k| (k as usize, 2 * c as i64 - 3 + 2 * k as i64))
                .filter(|(_, x)| (0..4).contains(x))
                .map(|(k, x)| (k, x as usize))
                .collect::<Vec<_>>()
        };
        for c in 0..4 {
            assert_eq!(taps(&[c], &[4], &[3], &w), all(c), "position {c}");
        }
        assert_eq!(taps(&[0], &[2], &[u64::MAX], &window(1, 1, 0, 0)), [(0, 0), (1, 1)]);
    }
}
