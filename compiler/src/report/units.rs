//! Quantities as people read them.

/// `1.50 ms`.
pub fn micros(us: f64) -> String {
    match us {
        _ if us >= 1e6 => format!("{:.2} s", us / 1e6),
        _ if us >= 1e3 => format!("{:.2} ms", us / 1e3),
        _ if us >= 100.0 => format!("{us:.0} µs"),
        _ => format!("{us:.1} µs"),
    }
}

/// `1.50 GB`, decimal.
pub fn bytes(n: u64) -> String {
    scaled(n as f64, "B", &["kB", "MB", "GB", "TB", "PB"])
}

/// `1.50 TFLOP`.
pub fn flops(n: f64) -> String {
    scaled(n, "FLOP", &["kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"])
}

/// `124 M`.
pub fn count(n: u64) -> String {
    scaled(n as f64, "", &["k", "M", "G", "T"]).trim_end().to_string()
}

/// `0.50 %`.
pub fn percent(x: f64) -> String {
    format!("{:.2} %", x * 100.0)
}

fn scaled(x: f64, unit: &str, larger: &[&str]) -> String {
    let mut x = x;
    let mut unit = unit;
    let mut exact = true;
    for &next in larger {
        if x < 1000.0 {
            break;
        }
        x /= 1000.0;
        unit = next;
        exact = false;
    }
    if exact { format!("{x:.0} {unit}") } else { format!("{x:.2} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1_500_000), "1.50 MB");
        assert_eq!(count(170_567), "170.57 k");
        assert_eq!(count(12), "12");
        assert_eq!(flops(6.02e6), "6.02 MFLOP");
        assert_eq!(micros(12.345), "12.3 µs");
        assert_eq!(micros(12_345.0), "12.35 ms");
    }
}
