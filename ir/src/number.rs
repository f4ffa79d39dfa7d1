//! Floating-point attributes in JSON.
//!
//! JSON has no infinities and no NaN, and a plan must not lose one: a clip to infinity would come
//! back as `null`. Finite numbers are written as numbers, the others as `"inf"`, `"-inf"` and
//! `"nan"`. Use it as `#[serde(with = "crate::number")]` on fields of type f32 and f64.

use serde::{Deserialize, Deserializer, Serializer, de};

/// A float that can be an attribute.
pub trait Number: Copy + Into<f64> {
    /// Nearest value.
    fn nearest(x: f64) -> Self;
    /// Written with as many digits as its own precision needs.
    fn serialize_finite<S: Serializer>(self, serializer: S) -> Result<S::Ok, S::Error>;
}

impl Number for f32 {
    fn nearest(x: f64) -> Self {
        x as Self
    }
    fn serialize_finite<S: Serializer>(self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f32(self)
    }
}

impl Number for f64 {
    fn nearest(x: f64) -> Self {
        x
    }
    fn serialize_finite<S: Serializer>(self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Name(String),
}

/// Writes a float.
pub fn serialize<T: Number, S: Serializer>(x: &T, serializer: S) -> Result<S::Ok, S::Error> {
    let wide: f64 = (*x).into();
    if wide.is_finite() {
        x.serialize_finite(serializer)
    } else if wide.is_nan() {
        serializer.serialize_str("nan")
    } else {
        serializer.serialize_str(if wide > 0.0 { "inf" } else { "-inf" })
    }
}

/// Reads a float.
pub fn deserialize<'de, T: Number, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let x = match Written::deserialize(deserializer)? {
        Written::Number(x) => x,
        Written::Name(name) => match name.as_str() {
            "inf" => f64::INFINITY,
            "-inf" => f64::NEG_INFINITY,
            "nan" => f64::NAN,
            other => {
                let expected = "a number, \"inf\", \"-inf\" or \"nan\"";
                return Err(de::Error::invalid_value(de::Unexpected::Str(other), &expected));
            }
        },
    };
    Ok(T::nearest(x))
}

/// The same for lists: `#[serde(with = "crate::number::list")]`.
pub mod list {
    use super::Number;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(bound = "")]
    struct One<T: Number>(#[serde(with = "super")] T);

    /// Writes a list of floats.
    pub fn serialize<T: Number, S: Serializer>(
        list: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(|&x| One(x)))
    }

    /// Reads a list of floats.
    pub fn deserialize<'de, T: Number, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        Ok(Vec::<One<T>>::deserialize(deserializer)?.into_iter().map(|One(x)| x).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Both {
        #[serde(with = "super")]
        narrow: f32,
        #[serde(with = "super")]
        wide: f64,
    }

    #[test]
    fn lists_come_back() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Many(#[serde(with = "super::list")] Vec<f32>);
        let many = Many(vec![0.1, f32::INFINITY, -0.0]);
        let text = serde_json::to_string(&many).unwrap();
        assert_eq!(text, r#"[0.1,"inf",-0.0]"#);
        assert_eq!(serde_json::from_str::<Many>(&text).unwrap(), many);
    }

    #[test]
    fn every_float_comes_back() {
        let values = [0.0, -0.0, 0.1, 1e-45, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        for narrow in values {
            let wide = f64::from(narrow) / 3.0;
            let text = serde_json::to_string(&Both { narrow, wide }).unwrap();
            let back: Both = serde_json::from_str(&text).unwrap();
            assert_eq!(back.narrow.to_bits(), narrow.to_bits(), "{text}");
            assert_eq!(back.wide.to_bits(), wide.to_bits(), "{text}");
        }
        assert_eq!(
            serde_json::to_string(&Both { narrow: 0.1, wide: f64::INFINITY }).unwrap(),
            r#"{"narrow":0.1,"wide":"inf"}"#
        );
        assert!(serde_json::from_str::<Both>(r#"{"narrow":"large","wide":0}"#).is_err());
    }
}
