import { mount } from 'svelte';
import '../../lib/base.css';
import '../report/report.css';
import Link from './Link.svelte';

mount(Link, { target: document.getElementById('app')! });
