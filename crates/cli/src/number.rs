//! Numbers as arguments.

/// A number from 0 to 1.
///
/// # Errors
/// It is none.
pub fn share(text: &str) -> Result<f64, String> {
    let number = amount(text)?;
    if number > 1.0 {
        return Err("must be from 0 to 1".to_owned());
    }
    Ok(number)
}

/// A number that is not below 0.
///
/// # Errors
/// It is none.
pub fn amount(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("must be a number of at least 0".to_owned()),
    }
}
