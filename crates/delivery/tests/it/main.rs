mod scripts;
mod sim;
