//! Times in signatures.

/// Seconds since 1970 of a time in the form `20130524T000000Z`.
pub fn unix_of(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    if bytes.len() != 16 || bytes[8] != b'T' || bytes[15] != b'Z' {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<u16> {
        let digits = bytes.get(from..to)?;
        digits.iter().all(u8::is_ascii_digit).then(|| std::str::from_utf8(digits).ok()?.parse().ok())?
    };
    let small = |from: usize| number(from, from + 2).map(|number| number as u8);
    let month = time::Month::try_from(small(4)?).ok()?;
    let date = time::Date::from_calendar_date(number(0, 4)?.into(), month, small(6)?).ok()?;
    let time = time::Time::from_hms(small(9)?, small(11)?, small(13)?).ok()?;
    Some(time::PrimitiveDateTime::new(date, time).assume_utc().unix_timestamp())
}

/// The form of `X-Amz-Date`, of seconds since 1970.
pub(super) fn text_of(unix: i64) -> Option<String> {
    let time = time::OffsetDateTime::from_unix_timestamp(unix).ok()?;
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.to_hms();
    (0..=9999)
        .contains(&year)
        .then(|| format!("{year:04}{:02}{day:02}T{hour:02}{minute:02}{second:02}Z", u8::from(month)))
}
