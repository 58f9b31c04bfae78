//! Messages of HTTP/1.1 over a blocking connection.

use std::{
    io::{BufRead, BufReader, Read},
    net::TcpStream,
};

use anyhow::ensure;

/// Reads a request or a response. Returns its first line and its body, or `None` at the end of the connection.
pub fn read_message(reader: &mut BufReader<TcpStream>) -> anyhow::Result<Option<(String, Vec<u8>)>> {
    let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    loop {
        line.clear();
        ensure!(reader.read_line(&mut line)? > 0, "the connection ended in the middle of a head");
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.trim().parse()?,
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((first, body)))
}
