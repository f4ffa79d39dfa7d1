//! Windows that move over spatial dimensions: what convolution and pooling share.

use super::decode::Decoder;
use crate::OpError;
use crate::program::Window;

/// Largest number of spatial dimensions.
pub const MAX_SPATIAL: usize = 3;

/// Reads strides, dilations and padding of a window of these extents over an input of these
/// spatial extents. `auto_pad` is resolved into numbers.
pub fn decode(d: &Decoder<'_>, spatial: &[u64], extents: &[u64]) -> Result<Window, OpError> {
    let rank = spatial.len();
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
    let pads = d.ints("pads")?.unwrap_or_else(|| vec![0; 2 * rank]);
    let pads: Option<Vec<u64>> = pads.iter().map(|&p| u64::try_from(p).ok()).collect();
    let pads = pads.filter(|p| p.len() == 2 * rank).ok_or_else(|| OpError::BadAttribute {
        name: "pads",
        why: format!("expected {} numbers, none negative", 2 * rank),
    })?;
    let (mut before, mut after) = (pads[..rank].to_vec(), pads[rank..].to_vec());
    let auto = d.string_or("auto_pad", "NOTSET")?;
    match auto.as_str() {
        "NOTSET" | "" => {}
        "VALID" => (before, after) = (vec![0; rank], vec![0; rank]),
        "SAME_UPPER" | "SAME_LOWER" => {
            for i in 0..rank {
                let out = u128::from(spatial[i].div_ceil(strides[i]));
                let reach = reach(extents[i], dilations[i]);
                let needed = out.saturating_sub(1) * u128::from(strides[i]) + reach;
                let total = needed.saturating_sub(u128::from(spatial[i]));
                let total = u64::try_from(total).map_err(|_| OpError::BadAttribute {
                    name: "auto_pad",
                    why: format!("would pad axis {i} by {total}"),
                })?;
                let (small, large) = (total / 2, total.div_ceil(2));
                let lower = auto == "SAME_LOWER";
                (before[i], after[i]) = if lower { (large, small) } else { (small, large) };
            }
        }
        other => {
            let why = format!("{other:?} is none of NOTSET, VALID, SAME_UPPER, SAME_LOWER");
            return Err(OpError::BadAttribute { name: "auto_pad", why });
        }
    }
    Ok(Window { strides, dilations, before, after })
}

/// How far a dilated window reaches.
fn reach(extent: u64, dilation: u64) -> u128 {
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
