//! Group norm, which exporters write as an instance norm of reshaped groups.

use super::super::pattern::Walk;
use super::super::rewriter::Rewriter;
use super::Raise;
use planc_ir::TensorType;
use planc_ir::graph::ValueId;
use planc_ir::ops::Op;
use planc_ir::ops::group_norm::GroupNorm;
use planc_ir::scalar::ScalarFn as F;

/// `[N, C, ..]` seen as `[N, G, ..]`, normalised by channel, and seen as it was: the groups are the
/// channels of the inner view.
pub fn of_groups(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    let mut walk = Walk::new(rewriter);
    let (Op::Reshape(_), &[normal]) = walk.step(root)? else { return None };
    let (Op::GroupNorm(norm), &[groups, scale, bias]) = walk.step(normal)? else { return None };
    let (Op::Reshape(_), &[x]) = rewriter.op(groups)? else { return None };
    let interior = walk.close(root)?;
    let (shape, grouped) = (rewriter.shape(x).to_vec(), rewriter.shape(groups));
    let ([n, channels, ..], [of_n, of_groups, ..]) = (&shape[..], grouped) else { return None };
    let size = channels.checked_div(*of_groups)?;
    let fits = norm.channels == 1 && n == of_n && size * of_groups == *channels && size > 0;
    let (scale, bias) = (rewriter.uniform(scale)?, rewriter.uniform(bias)?);
    let op = GroupNorm { channels: fits.then_some(size)?, epsilon: norm.epsilon };
    let each = TensorType::new(rewriter.ty(x).dtype, [*channels]);
    let scale = rewriter.filled(root, each.clone(), scale)?;
    let bias = rewriter.filled(root, each, bias)?;
    Some(Raise::new(op, [x, scale, bias], interior))
}

/// A factor a channel behind a group norm that has none.
pub fn scaled(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    joined(rewriter, root, F::Mul)
}

/// A summand a channel behind a group norm that has none.
pub fn biased(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    joined(rewriter, root, F::Add)
}

fn joined(rewriter: &mut Rewriter, root: ValueId, f: F) -> Option<Raise> {
    let mut walk = Walk::new(rewriter);
    let [a, b] = walk.binary(root, f)?;
    let (norm, [x, scale, bias], v) = [(a, b), (b, a)].into_iter().find_map(|(normal, v)| {
        walk.attempt(|w| match w.step(normal)? {
            (Op::GroupNorm(norm), inputs) => Some((norm.clone(), inputs.try_into().ok()?, v)),
            _ => None,
        })
    })?;
    let interior = walk.close(root)?;
    let plain = |v, neutral| rewriter.uniform(v) == Some(neutral);
    if !plain(bias, 0.0) || (f == F::Mul && !plain(scale, 1.0)) {
        return None;
    }
    // One value a channel: [C, 1, ..], with or without a dimension of 1 for the samples.
    let shape = rewriter.shape(x);
    let (channels, positions) = (*shape.get(1)?, shape.len() - 2);
    let own = rewriter.shape(v);
    let at = own.len().checked_sub(positions + 1)?;
    if own[at] != channels || own.iter().enumerate().any(|(i, &n)| i != at && n != 1) {
        return None;
    }
    let v = rewriter.reshape(root, v, &[channels])?;
    let inputs = if f == F::Mul { [x, v, bias] } else { [x, scale, v] };
    Some(Raise::new(norm, inputs, interior))
}
