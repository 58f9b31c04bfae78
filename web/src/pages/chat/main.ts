import { mount } from 'svelte';
import '../../lib/base.css';
import ChatPage from './ChatPage.svelte';

mount(ChatPage, { target: document.getElementById('app')! });
