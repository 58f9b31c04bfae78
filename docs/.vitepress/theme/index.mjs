// The default theme with the fonts of the system, as on the other pages of the server.
import theme from 'vitepress/theme-without-fonts';
import './style.css';

export default theme;
