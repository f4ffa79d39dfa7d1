//! Scalar functions on integers and bools.
//!
//! Arguments of any integer type fit into i128; results wrap to the type in which they are stored,
//! so that every wrapping operation here is right modulo 2^64 and thus for every type.

use super::ScalarFn;
use crate::EvalError;

impl ScalarFn {
    /// The function on integers; bools are 0 and 1. Missing operands count as 0.
    ///
    /// # Errors
    /// Division by zero, a negative shift, or a function that only floats have (see
    /// [`ScalarFn::accepts`]).
    pub fn apply_int(self, args: &[i128]) -> Result<i128, EvalError> {
        use ScalarFn as F;
        let arg = |i: usize| args.get(i).copied().unwrap_or(0);
        let (x, y) = (arg(0), arg(1));
        Ok(match self {
            F::PRelu if x < 0 => x.wrapping_mul(y),
            F::Identity | F::Cast(_) | F::PRelu => x,
            F::Neg => x.wrapping_neg(),
            F::Abs => x.wrapping_abs(),
            F::Sign => x.signum(),
            F::Not => i128::from(x == 0),
            F::BitwiseNot => !x,
            F::Relu => x.max(0),
            F::Add => x.wrapping_add(y),
            F::Sub => x.wrapping_sub(y),
            F::Mul => x.wrapping_mul(y),
            F::Div | F::Mod | F::Fmod if y == 0 => {
                return Err(EvalError::Invalid("integer division by zero".into()));
            }
            F::Div => x.wrapping_div(y),
            F::Mod => {
                let r = x.wrapping_rem(y);
                if r != 0 && (r < 0) != (y < 0) { r + y } else { r }
            }
            F::Fmod => x.wrapping_rem(y),
            F::Pow => power(x, y)?,
            F::Min => x.min(y),
            F::Max => x.max(y),
            F::And => i128::from(x != 0 && y != 0),
            F::Or => i128::from(x != 0 || y != 0),
            F::Xor => i128::from((x != 0) != (y != 0)),
            F::Equal => i128::from(x == y),
            F::Less => i128::from(x < y),
            F::LessOrEqual => i128::from(x <= y),
            F::Greater => i128::from(x > y),
            F::GreaterOrEqual => i128::from(x >= y),
            F::BitwiseAnd => x & y,
            F::BitwiseOr => x | y,
            F::BitwiseXor => x ^ y,
            F::ShiftLeft | F::ShiftRight if y < 0 => {
                return Err(EvalError::Invalid(format!("shift by {y} bits")));
            }
            F::ShiftLeft if y >= 64 => 0,
            F::ShiftLeft => x << y,
            F::ShiftRight => x >> y.min(127),
            F::Clip => x.max(y).min(arg(2)),
            F::Where if x == 0 => arg(2),
            F::Where => y,
            F::IsNaN | F::IsInf { .. } => 0,
            _ => return Err(EvalError::Invalid(format!("{self:?} is not defined on integers"))),
        })
    }
}

/// `x^y` modulo 2^128; a negative exponent truncates `1 / x^-y`.
fn power(x: i128, y: i128) -> Result<i128, EvalError> {
    if y < 0 {
        return match x {
            0 => Err(EvalError::Invalid("0 to a negative power".into())),
            1 => Ok(1),
            -1 => Ok(if y % 2 == 0 { 1 } else { -1 }),
            _ => Ok(0),
        };
    }
    let (mut result, mut square, mut rest) = (1i128, x, y);
    while rest > 0 {
        if rest & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest >>= 1;
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScalarFn as F;

    #[test]
    fn division_truncates_and_never_panics() {
        assert_eq!(F::Div.apply_int(&[-7, 2]), Ok(-3));
        assert_eq!(F::Div.apply_int(&[i128::from(i64::MIN), -1]), Ok(1 << 63));
        for f in [F::Div, F::Mod, F::Fmod] {
            assert!(f.apply_int(&[1, 0]).is_err());
        }
    }

    #[test]
    fn remainders_take_the_sign_of_their_side() {
        assert_eq!(F::Mod.apply_int(&[-4, 3]), Ok(2));
        assert_eq!(F::Mod.apply_int(&[4, -3]), Ok(-2));
        assert_eq!(F::Fmod.apply_int(&[-4, 3]), Ok(-1));
    }

    #[test]
    fn products_wrap_right_for_64_bits() {
        let big = i128::from(u64::MAX);
        assert_eq!(F::Mul.apply_int(&[big, big]).map(|x| x as u64), Ok(1));
        assert_eq!(F::Pow.apply_int(&[3, 100]).map(|x| x as i64), Ok(3i64.wrapping_pow(100)));
        assert_eq!(F::Pow.apply_int(&[-1, -3]), Ok(-1));
        assert!(F::Pow.apply_int(&[0, -1]).is_err());
    }

    #[test]
    fn shifts_of_any_distance() {
        assert_eq!(F::ShiftLeft.apply_int(&[1, 300]), Ok(0));
        assert_eq!(F::ShiftRight.apply_int(&[16, 300]), Ok(0));
        assert!(F::ShiftLeft.apply_int(&[1, -1]).is_err());
    }

    #[test]
    fn float_functions_are_refused() {
        assert!(F::Exp.apply_int(&[1]).is_err());
    }
}
